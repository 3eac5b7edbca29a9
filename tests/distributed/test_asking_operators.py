"""`prefetch` and `recv_save`, as programs that `append_op` makes have them."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.distributed.job import Job, batches, net
from tests.ps_server.job import BLOCK, TABLE

IDS = np.array([[3], [8], [3]])


def run(program, **feed):
    executor = fluid.Executor(fluid.CPUPlace())
    try:
        return executor.run(program, feed=feed, fetch_list=["out"] if feed else [])
    finally:
        executor.close()


def prefetch(endpoints, width=4):
    program = fluid.Program()
    block = program.global_block()
    for name, shape in {"ids": [-1, 1], "flat": [-1]}.items():
        block.create_var(name=name, shape=shape, dtype="int64", is_data=True)
    for name in ("rows", "flat_rows", "out"):
        block.create_var(name=name, shape=[-1, width], dtype="float32")
    block.append_op("prefetch", {"X": ["ids", "flat"]}, {"Out": ["rows", "flat_rows"]}, {"epmap": endpoints})
    block.append_op("sum", {"X": ["rows", "flat_rows"]}, {"Out": "out"})
    return program


def test_prefetch(servers):
    client = servers.start(2).client()
    wide = TABLE.model_copy(update={"name": "wide", "width": 6})
    client.create([TABLE, wide])
    client.push({"t": (np.arange(10), np.ones((10, 4), np.float32))})
    (found,) = run(prefetch(servers.endpoints), ids=IDS, flat=IDS[:, 0] + 1)
    wanted = client.look_up("t", IDS[:, 0]) + client.look_up("t", IDS[:, 0] + 1)
    np.testing.assert_array_equal(found, wanted)
    assert sum(s.tables["t"].rows for s in client.status()) == 10
    with pytest.raises(errors.ProgramError, match="rows of 5 numbers: found none"):
        run(prefetch(servers.endpoints, 5), ids=IDS, flat=IDS[:, 0])
    client.create([TABLE.model_copy(update={"name": "u"})])
    with pytest.raises(errors.ProgramError, match="prefetch names no table.*found t, u"):
        run(prefetch(servers.endpoints), ids=IDS, flat=IDS[:, 0])


def recv_save(path, slices, shape, **attrs):
    """`slices`: (server, name there, shape) of each."""
    servers, names, shapes = zip(*slices)
    given = {
        "shape": list(shape),
        "slice_shapes": [",".join(map(str, s)) for s in shapes],
        "slice_varnames": [f"{name}.slice.{i}" for i, name in enumerate(names)],
        "remote_varnames": list(names),
        "endpoints": list(servers),
        "file_path": str(path),
    }
    program = fluid.Program()
    program.global_block().append_op("recv_save", {}, {}, given | attrs)
    return program


def slices_of(trainer, name):
    """As Fluid names them: what the trainer's program says of a parameter."""
    parameter = trainer.main.division.layout.parameters[name]
    return [(trainer.endpoints[p.server], p.name, p.shape) for p in parameter.pieces]


def test_recv_save(tmp_path):
    """The files are those of save_persistables."""
    with Job(net("sparse", "adam"), 2) as job:
        job.begin()
        job.steps(batches(2))
        (trainer,) = job.trainers
        job.save(tmp_path / "wanted")
        for name, shape in {"table": (40, 4), "w1": (10, 8), "b2": (1,)}.items():
            path = tmp_path / "found" / name
            run(recv_save(path, slices_of(trainer, name), shape))
            assert path.read_bytes() == (tmp_path / "wanted" / name).read_bytes()
        saved = trainer.main.division.variables
        (moment,) = [n for n in saved if n.startswith("w1_moment1")]
        slices = [(trainer.endpoints[p.server], p.name, p.shape) for p in saved[moment].pieces]
        run(recv_save(tmp_path / "moment", slices, (10, 8)))
        assert (tmp_path / "moment").read_bytes() == (tmp_path / "wanted" / moment).read_bytes()
        assert len(slices_of(trainer, "table")) == 2
        job.steps(batches(2, 3))


def test_recv_save_of_what_is_not_there(tmp_path, servers):
    client = servers.start(2).client()
    client.create([TABLE], {0: [BLOCK]})
    first, path = servers.endpoints[0], tmp_path / "w"
    run(recv_save(path, [(first, "w", (2, 3))], (2, 3)))
    before = path.read_bytes()
    with pytest.raises(errors.OpError, match="exists, and the operator's attribute overwrite"):
        run(recv_save(path, [(first, "w", (2, 3))], (2, 3), overwrite=False))
    with pytest.raises(errors.ServerError, match="no block 'v'"):
        run(recv_save(path, [(first, "v", (2, 3))], (2, 3)))
    with pytest.raises(errors.ServerError, match="block w"):
        run(recv_save(path, [(first, "w", (2, 4))], (2, 4)))
    with pytest.raises(errors.ProgramError, match=r"the rows of \[5, 3\], found 2,3"):
        run(recv_save(path, [(first, "w", (2, 3))], (5, 3)))
    with pytest.raises(errors.ProgramError, match="expected such as \"20,4\", found '2;3'"):
        run(recv_save(path, [(first, "w", (2, 3))], (2, 3), slice_shapes=["2;3"]))
    with pytest.raises(errors.ProgramError, match="checkpoint_notify has servers save it"):
        run(recv_save(path, [(e, "t", (5, 4)) for e in servers.endpoints], (10, 4)))
    with pytest.raises(errors.ProgramError, match="endpoints: expected the server of each slice"):
        run(recv_save(path, [(first, "w", (2, 3))], (2, 3), endpoints=[]))
    assert path.read_bytes() == before
