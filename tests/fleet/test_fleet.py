"""The fleet of collective jobs: roles, programs and checkpoints as the real Fluid has them
(tests/golden/fleet.json).
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from jfluid.distributed.fs_wrapper import BDFS, FS, LocalFS
from jfluid.incubate.fleet.base.fleet_base import DistributedOptimizer, Fleet, Mode
from jfluid.incubate.fleet.base.role_maker import (
    GeneralRoleMaker,
    MPISymetricRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from jfluid.incubate.fleet.collective import (
    Collective,
    CollectiveOpBasedOptimizer,
    CollectiveOptimizer,
    DistFCConfig,
    DistributedStrategy,
    TrainStatus,
    fleet,
)

import jfluid as fluid
from jfluid import errors, processes
from jfluid.fleet.filesystem import RemoteFS
from tests.parity.fleet import CASES, ENVIRONMENTS, TRAINERS, _environment, run
from tests.ports import free_endpoints

pytestmark = pytest.mark.usefixtures("interpreted_module")

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "fleet.json").read_text())
ENDPOINTS = TRAINERS.split(",")


@pytest.fixture
def joined(monkeypatch):
    """Instead of waiting for other processes, note that they were asked for."""
    calls = []
    monkeypatch.setattr(processes, "join", lambda endpoints, rank: calls.append((list(endpoints), rank)))
    monkeypatch.setattr(fleet, "__dict__", Collective().__dict__)
    return calls


@pytest.mark.parametrize("case", CASES)
def test_equals_fluids(case, tmp_path, joined):
    assert run(fluid, case, tmp_path) == GOLDEN[case]


def network():
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
    hidden = fluid.layers.fc(x, 4)
    return hidden, fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))


def of_three(index=1):
    fleet.init(UserDefinedCollectiveRoleMaker(index, ENDPOINTS))


# ---- roles ---------------------------------------------------------------------------------------


def test_processes_of_a_collective_job_are_workers():
    """Unlike Fluid's, of which none is a worker, nor the first."""
    for index in (0, 2):
        with _environment({"PADDLE_TRAINER_ENDPOINTS": TRAINERS, "PADDLE_TRAINER_ID": str(index)}):
            maker = PaddleCloudRoleMaker(is_collective=True)
            maker.generate_role()
        assert maker.is_worker() and not maker.is_server() and maker.is_first_worker() == (index == 0)
    maker = UserDefinedCollectiveRoleMaker(0, ENDPOINTS)
    assert maker.is_worker() and maker.is_first_worker() and not maker.is_server()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            "collective without endpoints",
            "variable PADDLE_TRAINER_ENDPOINTS is not set: start the script with jfluid-launch",
        ),
        (
            "collective server",
            "PADDLE_TRAINING_ROLE: a collective job has only TRAINERs, found 'PSERVER'",
        ),
        ("trainer without a number", "variable PADDLE_TRAINER_ID is not set"),
        ("server elsewhere", "say 127.0.0.1:6003, which is not in PADDLE_PSERVERS_IP_PORT_LIST"),
        ("other role", "TRAINING_ROLE: expected TRAINER or PSERVER, found 'MASTER'"),
        ("no trainers", "variable PADDLE_TRAINERS_NUM is not set"),
    ],
)
def test_environments_that_describe_no_job(environment, said):
    collective, variables = ENVIRONMENTS[environment]
    with _environment(variables), pytest.raises(errors.ProgramError, match=said):
        PaddleCloudRoleMaker(is_collective=collective).worker_num()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PADDLE_TRAINER_ID": "3"}, "PADDLE_TRAINER_ID: expected an integer from 0 to 2, found 3"),
        ({"PADDLE_TRAINER_ID": "x"}, "PADDLE_TRAINER_ID: expected an integer from 0 on, found 'x'"),
        ({"PADDLE_TRAINER_ENDPOINTS": "a:1,a:1"}, "expected different endpoints"),
        ({"PADDLE_TRAINER_ENDPOINTS": "a"}, "expected different endpoints"),
        ({"PADDLE_TRAINER_ENDPOINTS": "a:99999"}, "expected .* with ports up to 65535"),
    ],
)
def test_wrong_variables(variables, said):
    with (
        _environment({"PADDLE_TRAINER_ENDPOINTS": TRAINERS, "PADDLE_TRAINER_ID": "0"} | variables),
        pytest.raises(errors.ProgramError, match=said),
    ):
        PaddleCloudRoleMaker(is_collective=True).generate_role()


MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}


@pytest.mark.parametrize("variables", [MPI, {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}], ids=["openmpi", "mpich"])
def test_mpi_makes_a_server_and_a_trainer_of_each_pair(variables):
    rank = "PMI_RANK" if "PMI_SIZE" in variables else "OMPI_COMM_WORLD_RANK"
    makers = []
    for i in range(4):
        with _environment(variables | {rank: str(i)}):
            maker = MPISymetricRoleMaker()
            maker.generate_role()
        makers.append(maker)
    assert [m.is_server() for m in makers] == [True, False, True, False]
    assert [m.worker_index() for m in makers] == [0, 0, 1, 1]
    assert {m.worker_num() for m in makers} == {2} and makers[0].server_num() == 2
    endpoints = makers[0].get_pserver_endpoints() + makers[0].get_trainer_endpoints()
    assert len(set(endpoints)) == 4 and makers[3].get_local_endpoint() == endpoints[3]


@pytest.mark.parametrize(
    ("variables", "error", "said"),
    [
        ({}, errors.ProgramError, "there is no MPI job of several processes"),
        (MPI | {"OMPI_COMM_WORLD_SIZE": "3"}, errors.ProgramError, "3 processes; of each pair"),
        (
            MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            errors.UnsupportedError,
            "on several hosts.*mpirun -np HOSTS jfluid-launch",
        ),
    ],
)
def test_mpi_jobs_without_pairs_on_this_host(variables, error, said):
    with (
        _environment(variables | {"OMPI_COMM_WORLD_RANK": "0"}),
        pytest.raises(error, match=said),
    ):
        MPISymetricRoleMaker().generate_role()


def test_fluids_ways_of_finding_each_other_have_no_effect():
    with pytest.warns(RuntimeWarning, match="http_ip_port: no effect: processes find each other"):
        GeneralRoleMaker(http_ip_port="a:1", path="")


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: UserDefinedRoleMaker(), TypeError, "server_endpoints: expected a list of strings"),
        (
            lambda: UserDefinedRoleMaker(0, Role.WORKER, 0, ["a:1"]),
            errors.ProgramError,
            "worker_num: expected at least 1",
        ),
        (
            lambda: UserDefinedRoleMaker(1, Role.SERVER, 1, ["a:1"]),
            errors.ProgramError,
            "current_id: expected 0 to 0, found 1",
        ),
        (
            lambda: UserDefinedRoleMaker(0, 3, 1, ["a:1"]),
            TypeError,
            "role: expected Role.WORKER or Role.SERVER, found 3",
        ),
        (
            lambda: UserDefinedCollectiveRoleMaker("0", ["a:1"]),
            TypeError,
            "current_id: expected a whole number, found '0'",
        ),
        (
            lambda: UserDefinedCollectiveRoleMaker(0, ["a:1", "a:1"]),
            errors.ProgramError,
            "a:1 stands twice",
        ),
        (
            lambda: UserDefinedCollectiveRoleMaker(0, ["a"]),
            errors.ProgramError,
            "'a' must have the form host:port",
        ),
        (
            lambda: UserDefinedCollectiveRoleMaker(0, []),
            errors.ProgramError,
            "at least one endpoint",
        ),
        (
            lambda: GeneralRoleMaker(paht="x"),
            errors.ProgramError,
            "no argument paht.*did you mean path",
        ),
    ],
)
def test_wrong_role_makers(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_general_role_maker():
    job = {"PADDLE_PSERVERS_IP_PORT_LIST": "a:1,b:1", "PADDLE_TRAINER_ENDPOINTS": "c:1,d:1"}
    with _environment(job | {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1"}):
        trainer = GeneralRoleMaker(path="")
        assert (trainer.is_worker(), trainer.worker_index(), trainer.worker_num()) == (True, 1, 2)
        assert trainer.get_local_endpoint() == "d:1" and trainer.get_pserver_endpoints() == [
            "a:1",
            "b:1",
        ]
    with _environment(job | {"TRAINING_ROLE": "PSERVER", "PADDLE_PSERVER_ID": "1"}):
        server = GeneralRoleMaker()
        assert server.is_server() and server.get_local_endpoint() == "b:1"
        with pytest.raises(errors.UnsupportedError, match="barrier_worker: only trainers tell each other numbers"):
            server.barrier_worker()
    with _environment(job | {"TRAINING_ROLE": "PSERVER", "POD_IP": "a", "PADDLE_PORT": "1"}):
        assert GeneralRoleMaker().server_index() == 0


def test_trainers_of_servers_meet_at_their_endpoints(monkeypatch):
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "a-secret-of-the-tests")
    job = {
        "PADDLE_PSERVERS_IP_PORT_LIST": "a:1",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(free_endpoints(2)),
        "TRAINING_ROLE": "TRAINER",
    }
    makers = []
    for rank in range(2):
        with _environment(job | {"PADDLE_TRAINER_ID": str(rank)}):
            makers.append(GeneralRoleMaker())
            makers[-1].generate_role()

    def work(maker):
        out = np.zeros(2)
        maker.all_reduce_worker(np.array([1.0, maker.worker_index()]), out, "max")
        maker.barrier_worker()
        return out.tolist(), maker.all_gather(maker.worker_index() + 5)

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(work, makers)) == [([1, 1], [5, 6])] * 2
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(maker.all_gather, [0] * (maker.worker_index() + 1)) for maker in makers]
    found = [call.exception() for call in calls]
    # the first that fails may close the connection before the other has read what is wrong
    assert all(isinstance(error, errors.DataError) for error in found)
    assert any("different shapes or dtypes" in str(error) for error in found)


def test_numbers_of_all_trainers(monkeypatch, joined):
    monkeypatch.setattr(processes, "all_gather", lambda value: np.stack([value, value + 1, value * 3]))
    maker = UserDefinedCollectiveRoleMaker(1, ENDPOINTS)
    for mode, expected in (("sum", [6, 21]), ("min", [1, 4]), ("max", [3, 12])):
        out = [0, 0]
        maker.all_reduce_worker([1, 4], out, mode)
        assert out == expected
    array = np.zeros(2)
    maker.all_reduce_worker(np.array([1.0, 4.0]), array)
    assert array.tolist() == [6, 21] and maker.all_gather(2) == [2, 3, 6]
    maker.barrier_worker()
    maker.barrier_all()
    assert joined[0] == (ENDPOINTS, 1)
    with pytest.raises(errors.ProgramError, match="mode: expected sum, min, max, found 'mean'"):
        maker.all_reduce_worker([1], [0], "mean")


def test_numbers_that_nobody_can_send():
    alone = UserDefinedRoleMaker(0, Role.WORKER, 1, ["a:1"])
    alone.all_reduce_worker([2], out := [0])
    assert out == [2] and alone.all_gather(5) == [5]
    with pytest.raises(
        errors.UnsupportedError,
        match="all_reduce_worker: a UserDefinedRoleMaker does not tell where",
    ):
        UserDefinedRoleMaker(0, Role.WORKER, 2, ["a:1"]).all_reduce_worker([2], [0])
    with pytest.raises(errors.UnsupportedError, match="barrier_all"):
        alone.barrier_all()
    with pytest.raises(NotImplementedError, match=r"RoleMakerBase\.generate_role"):
        RoleMakerBase().is_worker()


# ---- the fleet -----------------------------------------------------------------------------------


def test_init_meets_the_others(joined):
    with _environment({"PADDLE_TRAINER_ENDPOINTS": TRAINERS, "PADDLE_TRAINER_ID": "2"}):
        fleet.init()
    assert joined == [(ENDPOINTS, 2)]
    assert fleet.worker_endpoints() == ENDPOINTS and fleet.worker_endpoints(to_string=True) == TRAINERS
    assert fleet.worker_num() == 3 and fleet.worker_index() == 2 and fleet.server_num() == 0
    assert (
        fleet.is_worker()
        and not fleet.is_server()
        and not fleet.is_first_worker()
        and fleet.server_endpoints(True) == ""
    )
    with pytest.raises(errors.ProgramError, match="the role maker tells of parameter servers"):
        fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 1, ["a:1"]))
    with pytest.raises(TypeError, match="expected a role maker, found str"):
        fleet.init("worker")


@pytest.mark.parametrize(
    ("files", "shares"), [("abcde", ["ab", "cd", "e"]), ("ab", ["a", "b", ""]), ("", ["", "", ""])]
)
def test_files_are_split(files, shares, joined):
    for index, share in enumerate(shares):
        of_three(index)
        assert fleet.split_files(list(files)) == list(share)
    with pytest.raises(TypeError, match="expected a list of files"):
        fleet.split_files("abc")


def test_before_init():
    with pytest.raises(errors.ProgramError, match=r"call fleet\.init\(role_maker\) first"):
        Collective().worker_num()
    _, loss = network()
    with pytest.raises(errors.ProgramError, match=r"call fleet\.init"):
        Collective().distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize(loss)
    with pytest.raises(errors.ProgramError, match="save_persistables: give main_program, or minimize a loss"):
        Collective().save_persistables(fluid.Executor(fluid.CPUPlace()), "model")
    assert (Mode.TRANSPILER, Mode.PSLIB, Mode.COLLECTIVE) == (1, 2, 3)
    with pytest.raises(NotImplementedError, match=r"Fleet\.init_worker"):
        Fleet(Mode.TRANSPILER).init_worker()
    with pytest.raises(NotImplementedError, match=r"DistributedOptimizer\.minimize"):
        DistributedOptimizer(fluid.optimizer.SGD(0.1)).minimize(loss)


@pytest.mark.parametrize("method", ["init_worker", "run_worker", "init_server", "run_server", "stop_worker"])
def test_what_a_collective_job_does_not_need(method):
    with pytest.warns(RuntimeWarning, match=rf"fleet\.{method}: a collective job has nothing to do there"):
        getattr(fleet, method)()


# ---- strategies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        (
            {"mode": "pserver"},
            errors.ProgramError,
            'expected "nccl2" or "collective", found \'pserver\'',
        ),
        (
            {"mode": "collective"},
            errors.ProgramError,
            'mode "collective" needs "grad_allreduce" or "local_sgd", found None',
        ),
        (
            {"collective_mode": "local_sgd"},
            errors.ProgramError,
            'needs mode "collective", found "nccl2"',
        ),
        ({"use_dist_fc": True}, errors.ProgramError, "use_dist_fc needs dist_fc_config"),
        (
            {"use_dist_fc": True, "dist_fc_config": DistFCConfig(), "use_local_sgd": True},
            errors.ProgramError,
            "use_dist_fc does not go with use_local_sgd",
        ),
        (
            {"use_localsgd": True},
            errors.ProgramError,
            "no field use_localsgd.*did you mean use_local_sgd",
        ),
        (
            {"forward_recompute": True},
            errors.ProgramError,
            "forward_recompute needs recompute_checkpoints",
        ),
        (
            {"recompute_checkpoints": ("x",)},
            errors.ProgramError,
            "expected a list of Variables, found tuple",
        ),
    ],
)
def test_strategies_that_cannot_be(fields, error, said, joined):
    of_three()
    _, loss = network()
    before = len(loss.block.ops)
    with pytest.raises(error, match=said):
        strategy = DistributedStrategy()
        for name, value in fields.items():
            setattr(strategy, name, value)
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy).minimize(loss)
    assert len(loss.block.ops) == before


def test_wrong_optimizers():
    with pytest.raises(TypeError, match="expected an optimizer, found str"):
        CollectiveOptimizer("sgd")
    with pytest.raises(TypeError, match="strategy: expected a DistributedStrategy, found BuildStrategy"):
        CollectiveOptimizer(fluid.optimizer.SGD(0.1), fluid.BuildStrategy())
    with pytest.raises(TypeError, match="strategy: expected a DistributedStrategy, found NoneType"):
        CollectiveOpBasedOptimizer(fluid.optimizer.SGD(0.1))


def test_recomputation_and_16_bits(joined):
    of_three()
    hidden, loss = network()
    strategy = DistributedStrategy()
    strategy.forward_recompute, strategy.recompute_checkpoints, strategy.use_amp = (
        True,
        [hidden],
        True,
    )
    strategy.mode, strategy.collective_mode = "collective", "grad_allreduce"
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy).minimize(loss)
    types = [op.type for op in fluid.default_main_program().global_block().ops]
    assert "recompute_barrier" in types and "cast" in types and types.count("c_allreduce_sum") == 4
    assert any("loss_scaling" in n for n in fluid.default_main_program().global_block().vars)
    with pytest.raises(
        errors.ProgramError,
        match="use_amp: give the optimizer inside, not a OptimizerWithMixedPrecision",
    ):
        strategy.forward_recompute = False
        inner = fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.1))
        fleet.distributed_optimizer(inner, strategy).minimize(loss)


@pytest.mark.parametrize(
    "fields",
    [{}, {"mode": "collective", "collective_mode": "grad_allreduce"}, {"use_local_sgd": True}],
)
def test_one_process_trains_as_without_a_fleet(fields, joined):
    def losses(distributed):
        with (
            fluid.program_guard(fluid.Program(), fluid.Program()),
            fluid.unique_name.guard(),
            fluid.scope_guard(fluid.Scope()),
        ):
            fluid.default_startup_program().random_seed = 7
            _, loss = network()
            optimizer = fluid.optimizer.Adam(0.1)
            if distributed:
                fleet.init(UserDefinedCollectiveRoleMaker(0, ENDPOINTS[:1]))
                strategy = DistributedStrategy()
                for name, value in fields.items():
                    setattr(strategy, name, value)
                optimizer = fleet.distributed_optimizer(optimizer, strategy)
            optimizer.minimize(loss)
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(fluid.default_startup_program())
            program = fleet.main_program if distributed else fluid.default_main_program()
            rows = np.random.RandomState(0).rand(8, 4).astype("float32")
            return [exe.run(program, feed={"x": rows, "y": rows[:, :1]}, fetch_list=[loss])[0].item() for _ in range(4)]

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)


# ---- checkpoints and models ----------------------------------------------------------------------


def trained(index=0):
    of_three(index)
    hidden, loss = network()
    fleet.distributed_optimizer(fluid.optimizer.Momentum(0.1, 0.9)).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe, hidden


def weights():
    return {
        v.name: np.array(fluid.global_scope().find_var(v.name).get_tensor())
        for v in fluid.io.get_program_persistable_vars(fluid.default_main_program())
    }


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_checkpoints(where, tmp_path, joined, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exe, _ = trained()
    fs = LocalFS() if where == "here" else RemoteFS("memory://jobs")
    fleet.save_check_point(exe, "job", TrainStatus(4), fs=fs)
    # of a job that was stopped while it saved
    os.makedirs("job/__paddle_fleet_checkpoint__.1.tmp/left")
    before = weights()
    scope = fluid.global_scope()
    for name in before:
        scope.find_var(name).get_tensor().set(np.zeros_like(before[name]))
    fleet.save_check_point(exe, "job", TrainStatus(5), fs=fs)
    assert sorted(fs.list_dirs("job"))[:2] == [
        "__paddle_fleet_checkpoint__.0",
        "__paddle_fleet_checkpoint__.1",
    ]
    fs.delete("job/__paddle_fleet_checkpoint__.1")
    assert fleet.load_check_point(exe, "job", trainer_id=0, fs=fs) == TrainStatus(4)
    for name, value in weights().items():
        np.testing.assert_array_equal(value, before[name])
    assert any(n.endswith("velocity_0") and v.shape for n, v in before.items())
    fs.delete("job")
    assert fleet.load_check_point(exe, "job", trainer_id=0, fs=fs) is None
    with pytest.raises(errors.FileFormatError, match="job: there is no checkpoint"):
        fleet.load_check_point(exe, "job", trainer_id=0, fs=fs, ignore_empty=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "epoch_no"),
        ("[", "expected"),
        ('{"epoch_no": -2}', "found -2"),
        ('{"epoch_no": "3"}', "found '3'"),
        ("[" * 10_000, "expected"),
        ("\udcff", "expected"),
        ('{"epoch_no": 1e999}', "found inf"),
        ('{"epoch_no": 9223372036854775808}', "below"),
        (" " * (2 << 20), "2097152 bytes"),
        ('{"epoch_no": 1, "files": {"a": "b"}}', "files: expected the bytes of each"),
    ],
)
def test_checkpoints_that_cannot_be_read(text, said, tmp_path, joined):
    exe, _ = trained()
    fleet.save_check_point(exe, str(tmp_path), TrainStatus(0))
    (tmp_path / "__paddle_fleet_checkpoint__.0" / "fleet_train_status").write_bytes(
        text.encode(errors="surrogateescape")
    )
    with pytest.raises(errors.FileFormatError, match=said):
        fleet.load_check_point(exe, str(tmp_path), 0)
    (tmp_path / "__paddle_fleet_checkpoint__.0" / "fleet_train_status").unlink()
    assert fleet.load_check_point(exe, str(tmp_path), 0) == TrainStatus(-1)
    with pytest.raises(TypeError, match="train_status: expected a TrainStatus, found int"):
        fleet.save_check_point(exe, str(tmp_path), 3)


def test_models(tmp_path, joined):
    exe, hidden = trained()
    fleet.save_inference_model(exe, str(tmp_path / "model"), ["x"], [hidden])
    fleet.save_persistables(exe, str(tmp_path / "state"), filename="all")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "__model__",
        "fc_0.b_0",
        "fc_0.w_0",
    ]
    assert [p.name for p in (tmp_path / "state").iterdir()] == ["all"]
    with pytest.raises(errors.ProgramError, match=r"say which variables are fed \(feeded_var_names\)"):
        fleet.save_inference_model(exe, str(tmp_path), target_vars=[hidden])
    with pytest.raises(TypeError, match="main_program: expected a Program, found CompiledProgram"):
        fleet.save_inference_model(exe, str(tmp_path), ["x"], [hidden], main_program=fleet.main_program)


def test_file_systems(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "f").write_text("text")
    here, there = LocalFS(), BDFS("memory://cluster", "user,secret")
    assert here.list_dirs(str(tmp_path / "a")) == ["b"] and sorted(here.ls_dir(str(tmp_path / "a"))) == ["b", "f"]
    assert not here.need_upload_download() and there.need_upload_download()
    there.upload(str(tmp_path / "a" / "f"), "/x/f")
    there.mkdir("/x/y")
    assert there.ls_dir("/x") == (["y"], ["f"]) and there.list_dirs("/none") == [] and there.is_dir("/x")
    there.mv("/x/f", "/x/g")
    there.download("/x/g", str(tmp_path / "back" / "g"))
    assert (tmp_path / "back" / "g").read_text() == "text"
    there.rm("/x/g")
    assert not there.stat("/x/g")
    there.rmr("/x")
    there.delete("/x")
    here.upload(str(tmp_path / "a"), str(tmp_path / "copy"))
    here.download(str(tmp_path / "a" / "f"), str(tmp_path / "copy" / "g"))
    here.mv(str(tmp_path / "copy" / "g"), str(tmp_path / "copy" / "h"))
    here.rm(str(tmp_path / "copy" / "h"))
    here.delete(str(tmp_path / "copy" / "f"))
    assert os.listdir(tmp_path / "copy") == ["b"]
    here.rmr(str(tmp_path / "copy"))
    here.delete(str(tmp_path / "copy"))
    with pytest.raises(errors.UnsupportedError, match="nowhere://x: fsspec cannot open it"):
        BDFS("nowhere://x", "")
    with pytest.raises(errors.UnsupportedError, match="time_out and sleep_inter"):
        BDFS("memory://x", "", time_out=3)
    with pytest.raises(NotImplementedError, match=r"FS\.stat"):
        FS().stat("x")


def test_divided_layers_are_whole():
    strategy = DistributedStrategy()
    strategy.use_dist_fc, strategy.dist_fc_config = True, DistFCConfig()
    with pytest.warns(RuntimeWarning, match="use_dist_fc: no effect: each process holds the whole"):
        assert strategy.collective() is None
