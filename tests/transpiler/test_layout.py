"""The layout of parameters: what DistributeTranspiler decided is what the operators of its programs
say.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid.transpiler.parameter_server.layout import JobLayout, ParameterLayout, Piece, endpoints_of
from tests.parity.parameter_server import ENDPOINTS, STRATEGIES

# slice_var_up, min_block_size
CUT = {"whole": (False, 8192), "sliced": (True, 4), "too small to slice": (True, 8192)}
TABLES = {
    "dense": {},
    "sparse": {"is_sparse": True},
    "distributed": {"is_sparse": True, "is_distributed": True},
}
# see test_pserver_programs.py
REFUSED = {("geo", "distributed"), ("dc_asgd", "sparse"), ("dc_asgd", "distributed")}


def transpiled(strategy, cut, table):
    """(transpiler, the trainer's startup program) of a net with a dense layer and a table."""
    with (
        fluid.program_guard(fluid.Program(), startup := fluid.Program()),
        fluid.unique_name.guard(),
    ):
        rows = fluid.layers.embedding(
            fluid.data("ids", [None, 1], dtype="int64"),
            [21, 4],
            param_attr="table",
            **TABLES[table],
        )
        hidden = fluid.layers.fc(rows, 5, act="tanh", param_attr="w")
        loss = fluid.layers.mean(fluid.layers.fc(hidden, 1))
        fluid.optimizer.SGD(fluid.layers.exponential_decay(0.1, 10, 0.5)).minimize(loss)
        config = fluid.DistributeTranspilerConfig()
        config.slice_var_up, smallest = CUT[cut]
        for field, value in {"wait_port": False, **STRATEGIES[strategy]}.items():
            setattr(config, field, value)
        transpiler = fluid.DistributeTranspiler(config)
        transpiler.config.min_block_size = smallest
        transpiler.transpile(1, pservers=",".join(ENDPOINTS), trainers=2, sync_mode=config.sync_mode)
        return transpiler, startup


def from_file(program):
    """The program as one who reads it from a file has it."""
    found = fluid.Program.parse_from_string(program.desc.serialize_to_string())
    assert found.division is None
    return found


@pytest.mark.parametrize(
    ("strategy", "cut", "table"),
    [(s, c, t) for s in STRATEGIES for c in CUT for t in TABLES if (s, t) not in REFUSED],
)
def test_programs_name_the_layout(strategy, cut, table, monkeypatch):
    """Also where they were read from files: then they have operators only, and those of some
    strategies name servers in the order of their pieces."""
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", ",".join(ENDPOINTS))
    transpiler, startup = transpiled(strategy, cut, table)
    main = transpiler.get_trainer_program(wait_port=False)
    layout = main.division.layout
    assert set(layout.parameters) == {"table", "w", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"}
    assert layout.endpoints == tuple(ENDPOINTS)
    assert layout.parameters["table"].hashed == (table == "distributed")
    assert any(len(p.pieces) > 1 for p in layout.parameters.values() if not p.hashed) == (cut == "sliced")
    program = startup if strategy == "geo" else main
    assert JobLayout.of_program(program) == JobLayout.of_program(from_file(program)) == layout


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_servers_have_what_the_layout_says(strategy):
    transpiler, _ = transpiled(strategy, "sliced", "dense")
    layout = transpiler.get_trainer_program(wait_port=False).division.layout
    for number, endpoint in enumerate(ENDPOINTS):
        program = transpiler.get_pserver_program(endpoint)
        assert endpoints_of(program) == list(ENDPOINTS)
        there = program.global_block().vars
        for parameter in layout.parameters.values():
            for piece in parameter.pieces:
                assert (piece.name in there) == (piece.server == number), piece
                assert piece.server != number or tuple(there[piece.name].shape) == piece.shape


def test_a_servers_program_from_a_file_takes_the_servers_from_the_environment(monkeypatch):
    transpiler, _ = transpiled("sync", "whole", "dense")
    program = from_file(transpiler.get_pserver_program(ENDPOINTS[1]))
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", ",".join(ENDPOINTS))
    assert endpoints_of(program) == list(ENDPOINTS)
    monkeypatch.delenv("PADDLE_PSERVERS_IP_PORT_LIST")
    assert endpoints_of(program)[1] == ENDPOINTS[1]


def test_a_value_is_split_into_pieces_and_joined():
    layout = ParameterLayout("w", (5, 2), (Piece("w.block0", 1, 0, (3, 2)), Piece("w.block1", 0, 3, (2, 2))))
    value = np.arange(10.0).reshape(5, 2)
    parts = layout.split(value)
    assert {n: p.tolist() for n, p in parts.items()} == {
        "w.block0": value[:3].tolist(),
        "w.block1": value[3:].tolist(),
    }
    np.testing.assert_array_equal(layout.join(parts), value)
    assert layout.width == 2
