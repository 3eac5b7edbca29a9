"""Programs that train together: the transpiler's operators against Fluid's
(tests/golden/collective.json).
"""

import json
from pathlib import Path

import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.transpiler import collective
from jfluid.transpiler.ps_dispatcher import PSDispatcher
from tests.parity.collective import CASES, ENDPOINTS, OPTIMIZERS, _programs, defaults, run

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "collective.json").read_text())
SECOND = ENDPOINTS.split(",")[1]


def transpile(trainer_id=1, program=None, trainers=ENDPOINTS, current_endpoint=SECOND, **fields):
    config = fluid.DistributeTranspilerConfig()
    for name, value in ({"mode": "nccl2"} | fields).items():
        setattr(config, name, value)
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.transpile(trainer_id, program=program, trainers=trainers, current_endpoint=current_endpoint)
    return transpiler


@pytest.mark.parametrize("case", CASES)
def test_programs_are_fluids(case):
    found = run(fluid, case)
    for part, want in GOLDEN[case].items():
        assert found[part] == want, part


def test_defaults_are_fluids():
    assert defaults(fluid) == GOLDEN["defaults"]


def test_programs_remember_the_trainers():
    transpile()
    main = fluid.default_main_program()
    assert main._trainers_endpoints == main.clone()._trainers_endpoints == ENDPOINTS.split(",")
    assert fluid.Program()._trainers_endpoints == []


def test_hosts_of_a_hierarchy_are_counted():
    four = "a:1,a:2,b:1,b:2"
    transpile(trainers=four, current_endpoint="a:2", use_hierarchical_allreduce=True)
    op = fluid.default_startup_program().global_block().ops[-1]
    assert op.type == "gen_nccl_id" and op.attr("hierarchical_allreduce_inter_nranks") == 2
    with pytest.raises(errors.ProgramError, match=r"of which all trainers \(4\) are a multiple; found 3"):
        transpile(
            trainers=four,
            current_endpoint="a:2",
            use_hierarchical_allreduce=True,
            hierarchical_allreduce_inter_nranks=3,
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"trainers": 2}, "mode nccl2 needs all trainers' endpoints"),
        ({"trainers": "a,b"}, "needs all trainers' endpoints"),
        ({"trainers": "a:1,a:1"}, "an endpoint stands twice"),
        ({"trainer_id": 3}, "trainer_id: expected 0 to 2, found 3"),
        ({"trainer_id": -1}, "trainer_id: expected 0 to 2, found -1"),
        (
            {"current_endpoint": "127.0.0.1:1"},
            "current_endpoint: trainer 1 of .* is at 127.0.0.1:6171, found '127.0.0.1:1'",
        ),
        (
            {"mode": "nccl3"},
            "expected pserver, nccl2, collective, found 'nccl3'.*did you mean nccl2",
        ),
        (
            {"mode": "collective"},
            "collective_mode: expected grad_allreduce or local_sgd, found None",
        ),
        (
            {"mode": "collective", "collective_mode": "geo"},
            "collective_mode: expected .* found 'geo'",
        ),
        (
            {
                "mode": "collective",
                "collective_mode": "local_sgd",
                "trainers": SECOND,
                "trainer_id": 0,
            },
            "expected at least two endpoints",
        ),
        ({"min_block_size": 100}, "min_block_size: at least 8192, found 100"),
        ({"nccl_comm_num": 0}, "nccl_comm_num: at least 1, found 0"),
    ],
)
def test_wrong_arguments(arguments, said):
    with pytest.raises(errors.ProgramError, match=said):
        transpile(**arguments)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("slice_var", True, "no field slice_var.*did you mean slice_var_up"),
        ("sync_mode", None, "expected True or False"),
        ("nccl_comm_num", True, "expected a whole number, found True"),
        ("mode", 3, "expected a string, found 3"),
        ("split_method", "RoundRobin", "expected RoundRobin, HashName or any other PSDispatcher"),
        ("runtime_split_send_recv", True, "exclude each other"),
    ],
)
def test_wrong_fields(field, value, said):
    config = fluid.DistributeTranspilerConfig()
    with pytest.raises(errors.ProgramError, match=said):
        setattr(config, field, value)
    config.sync_mode = False
    config.runtime_split_send_recv = True
    assert repr(config) == "DistributeTranspilerConfig(runtime_split_send_recv=True, sync_mode=False)"
    with pytest.raises(errors.ProgramError, match="exclude each other"):
        config.sync_mode = True


def test_types():
    with pytest.raises(TypeError, match="config: expected a DistributeTranspilerConfig, found dict"):
        fluid.DistributeTranspiler({})
    with pytest.raises(TypeError, match="program: expected a Program, found str"):
        transpile(program="main")
    with pytest.raises(TypeError, match="trainer_id: expected a whole number, found '1'"):
        transpile(trainer_id="1")


def test_sparse_gradients_are_refused():
    ids = fluid.data("ids", [None, 1], "int64")
    loss = fluid.layers.mean(fluid.embedding(ids, [100, 4], is_sparse=True))
    fluid.optimizer.SGD(0.1).minimize(loss)
    with pytest.raises(errors.UnsupportedError, match="gradient embedding_0.w_0@GRAD has sparse rows"):
        transpile(mode="collective", collective_mode="grad_allreduce")


def test_classes_of_the_modes():
    main, startup = _programs(fluid, OPTIMIZERS["sgd"])
    rewriter = collective.GradAllReduce()
    rewriter.transpile(startup, main, 0, ENDPOINTS, "127.0.0.1:6170")
    rings = [op.attr("ring_id") for op in main.global_block().ops if op.type == "c_allreduce_sum"]
    assert rewriter.nrings == 2 and rewriter.nranks == 3 and rings == [1, 0, 1, 0]
    with pytest.raises(errors.ProgramError, match="expected the endpoint of process 0 of"):
        collective.LocalSGD().transpile(startup, main, 0, ENDPOINTS, SECOND)
    with pytest.raises(errors.ProgramError, match="nrings"):
        collective.LocalSGD(0)


def test_dispatchers():
    servers = ["a:1", "b:1"]
    names = [fluid.data(f"v{i}", [1]) for i in range(3)]
    by_turns = fluid.transpiler.RoundRobin(servers)
    assert by_turns.dispatch(names) == ["a:1", "b:1", "a:1"] and by_turns.dispatch(names[:1]) == ["b:1"]
    by_turns.reset()
    assert by_turns.dispatch(names[:1]) == ["a:1"] and by_turns.eps == servers
    by_name = fluid.transpiler.HashName(servers)
    assert by_name.dispatch(names) == by_name.dispatch(names) and set(by_name.dispatch(names)) <= set(servers)
    with pytest.raises(errors.ProgramError, match="expected a list of endpoints"):
        fluid.transpiler.HashName("a:1")
    with pytest.raises(NotImplementedError):
        PSDispatcher(servers).dispatch(names)
