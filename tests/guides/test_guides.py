"""The lines of Fluid's guides on distributed training, where one process shows what they do. Those
for several are in quick_start.py and nccl2.py.
"""

from pathlib import Path

import numpy as np
import pytest
from jfluid.incubate.fleet.base import role_maker
from jfluid.incubate.fleet.parameter_server.distribute_transpiler import (
    distributed_strategy,
)

import jfluid as fluid
from jfluid.parallel import notices
from tests.launch_case import launched

SERVERS = "127.0.0.1:6174,127.0.0.1:6175"


@pytest.mark.process
def test_cluster_quick_start(tmp_path):
    script = Path(__file__).parent / "quick_start.py"
    done = launched(
        *("--servers", "2", "--trainers", "2", "--log_dir", str(tmp_path / "log")),
        *(str(script), str(tmp_path)),
        forks=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    assert first["loss"] < 0.01 and second["loss"] < 0.01
    np.testing.assert_allclose(first["weight"], second["weight"], rtol=1e-6)
    np.testing.assert_allclose(first["weight"][:, 0], [2.0, *[0.0] * 12], atol=0.05)


def regression(width=13):
    x = fluid.layers.data(name="x", shape=[width], dtype="float32")
    y = fluid.layers.data(name="y", shape=[1], dtype="float32")
    predicted = fluid.layers.fc(input=x, size=1, act=None)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(input=predicted, label=y))
    fluid.optimizer.SGD(learning_rate=0.01).minimize(loss)
    return loss


def test_cluster_howto_how_parameters_are_divided():
    def transpiled(config=None, **arguments):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            regression(20_000)
            t = fluid.DistributeTranspiler(config=config)
            t.transpile(0, pservers=SERVERS, trainers=2, **arguments)
            return [
                [v.name for v in t.get_pserver_program(e).list_vars() if "fc_0.w_0" in v.name]
                for e in SERVERS.split(",")
            ]

    config = fluid.DistributeTranspilerConfig()
    config.slice_var_up = False
    whole = transpiled(config)
    assert sorted(map(len, whole)) == [0, len(whole[0] + whole[1])], "one server has the matrix"
    assert transpiled(slice_var_up=False) == whole, "the argument means what the field means"
    assert all(transpiled()), "by default each server has a part"
    assert not all(transpiled(min_block_size=1 << 20)), "too small to be divided"
    # By the hash of their names both parts may come to one server.
    assert sum(map(len, transpiled(split_method=fluid.HashName))) >= len(whole[0] + whole[1])
    config = fluid.DistributeTranspilerConfig()
    config.split_method = fluid.RoundRobin
    assert all(transpiled(config, sync_mode=False))


def test_large_scale_sparse_features():
    ids = fluid.layers.data(name="ids", shape=[1], dtype="int64")
    rows = fluid.layers.embedding(input=ids, size=[100_000, 9], is_sparse=True, is_distributed=True, param_attr="emb")
    loss = fluid.layers.mean(fluid.layers.fc(rows, 1))
    fluid.optimizer.Adagrad(learning_rate=0.01).minimize(loss)
    t = fluid.DistributeTranspiler()
    t.transpile(0, pservers=SERVERS, trainers=1)
    trainer = t.get_trainer_program(wait_port=False)
    types = [op.type for op in trainer.global_block().ops]
    assert "distributed_lookup_table" in types and "lookup_table" not in types


def test_asynchronous_training_on_the_cpu(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    loss = regression()
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = False
    config.runtime_split_send_recv = True
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(0, pservers=SERVERS, trainers=2, sync_mode=False)
    trainer = t.get_trainer_program(wait_port=False)
    build_strategy = fluid.BuildStrategy()
    build_strategy.async_mode = True
    build_strategy.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    exec_strategy = fluid.ExecutionStrategy()
    exec_strategy.num_threads = 2
    compiled = fluid.CompiledProgram(trainer).with_data_parallel(
        loss_name=loss.name, build_strategy=build_strategy, exec_strategy=exec_strategy
    )
    assert compiled is not None and "send" in [op.type for op in trainer.global_block().ops]


def test_geo():
    regression()
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = False
    config.runtime_split_send_recv = True
    config.geo_sgd_mode = True
    config.geo_sgd_need_push_nums = 100
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(0, pservers=SERVERS, trainers=2, sync_mode=False)
    assert "sgd" in [op.type for op in t.get_trainer_program(wait_port=False).global_block().ops]
    strategy = distributed_strategy.StrategyFactory.create_geo_strategy(400)
    assert strategy.get_program_config().geo_sgd_need_push_nums == 400


def test_fleet_roles():
    role = role_maker.UserDefinedRoleMaker(
        current_id=1,
        role=role_maker.Role.WORKER,
        worker_num=2,
        server_endpoints=["127.0.0.1:36000", "127.0.0.1:36001"],
    )
    role.generate_role()
    assert role.is_worker() and not role.is_server() and not role.is_first_worker()
    assert (role.worker_num(), role.worker_index()) == (2, 1)
    assert role.get_pserver_endpoints() == ["127.0.0.1:36000", "127.0.0.1:36001"]
    collective = role_maker.UserDefinedCollectiveRoleMaker(
        current_id=0, worker_endpoints=["127.0.0.1:36002", "127.0.0.1:36003"]
    )
    collective.generate_role()
    assert collective.is_first_worker() and collective.worker_num() == 2


def test_parallel_executor(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    notices._warn.cache_clear()
    loss = regression()
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
    exec_strategy = fluid.ExecutionStrategy()
    exec_strategy.num_iteration_per_drop_scope = 100
    exec_strategy.allow_op_delay = False
    build_strategy = fluid.BuildStrategy()
    build_strategy.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    with pytest.warns(RuntimeWarning, match="num_iteration_per_drop_scope=100: XLA frees"):
        train_exe = fluid.ParallelExecutor(
            use_cuda=False,
            loss_name=loss.name,
            exec_strategy=exec_strategy,
            build_strategy=build_strategy,
        )
    test_exe = fluid.ParallelExecutor(use_cuda=False, share_vars_from=train_exe, main_program=test_program)
    random = np.random.RandomState(0)
    features = random.randn(8, 13).astype("float32")
    feed = {"x": features, "y": features[:, :1]}
    assert train_exe.device_count == 2
    for _ in range(3):
        (train_loss,) = train_exe.run(fetch_list=[loss.name], feed=feed)
    halves = [{n: v[i : i + 4] for n, v in feed.items()} for i in (0, 4)]
    (test_loss,) = test_exe.run(fetch_list=[loss.name], feed=halves)
    assert train_loss.shape == test_loss.shape == (2,)
    assert test_loss.mean() < train_loss.mean(), "it reads the parameters that training has updated"


def test_a_dataset_trains_one_worker(tmp_path):
    lines = np.random.RandomState(0).randn(64, 3)
    for part in range(4):
        text = "".join(f"2 {a} {b} 1 {c}\n" for a, b, c in lines[part * 16 : part * 16 + 16])
        (tmp_path / f"part-{part}").write_text(text)
    x, y = fluid.data("x", [None, 2]), fluid.data("y", [None, 1])
    predicted = fluid.layers.fc(x, 1, param_attr=fluid.initializer.Constant(0.1))
    loss = fluid.layers.mean(fluid.layers.square_error_cost(predicted, y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe, found = fluid.Executor(fluid.CPUPlace()), []
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var([x, y])
    dataset.set_batch_size(8)
    dataset.set_thread(1)
    dataset.set_filelist([str(tmp_path / f"part-{part}") for part in range(4)])
    dataset.load_into_memory()
    for thread in (1, 4):
        exe.run(fluid.default_startup_program())
        exe.train_from_dataset(program=fluid.default_main_program(), dataset=dataset, thread=thread)
        found.append(np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor()))
    assert (found[0] == found[1]).all() and (found[0] != np.float32(0.1)).all()
