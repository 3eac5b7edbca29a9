"""`FleetUtil`: metrics over all trainers, and tools for programs."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from jfluid.incubate.fleet.base.role_maker import UserDefinedRoleMaker
from jfluid.incubate.fleet.utils.fleet_util import FleetUtil

import jfluid as fluid
from jfluid import errors, record
from jfluid.fleet import role_maker
from jfluid.fleet.parameter_server.fleet import fleet


@pytest.fixture
def util(monkeypatch):
    monkeypatch.setattr(
        fleet, "_role_maker", UserDefinedRoleMaker(worker_num=1, server_endpoints=["127.0.0.1:1"]), raising=False
    )
    return FleetUtil(mode="transpiler")


def filled_scope():
    """The counters of 200 buckets, and the sums of 100 examples."""
    random, scope, buckets = np.random.RandomState(3), fluid.Scope(), np.arange(200)
    positive, negative = random.randint(0, 400, (1, 200)), random.randint(0, 400, (1, 200))
    counters = {
        "_generated_var_2": (positive * buckets // 200).astype("int64"),
        "_generated_var_3": (negative * (200 - buckets) // 200).astype("int64"),
    }
    sums = {"sqrerr": 1.5, "abserr": 3.25, "prob": 40.5, "q": 7.5, "pos": 30.0, "total": 100.0}
    for name, value in {**counters, **{n: np.array([v], "float32") for n, v in sums.items()}}.items():
        scope.var(name).get_tensor().set(value, fluid.CPUPlace())
    return scope


# of Fluid 1.8.5 under Python 3.7, with its `xrange` as `range`
METRICS = [
    0.8320812794667755,
    0.13837075593251597,
    0.0325,
    0.1224744871391589,
    0.3,
    0.405,
    0.7407407407407407,
    0.075,
    100,
]


def test_metrics_are_fluids(util, capsys):
    scope = filled_scope()
    assert util.get_global_metrics(scope) == pytest.approx(METRICS, rel=1e-6)
    util.print_global_metrics(scope, print_prefix="day 1")
    util.print_global_auc(scope, print_prefix="day 1")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(
        "day 1 global AUC=0.832081 BUCKET_ERROR=0.138371 MAE=0.032500 RMSE=0.122474 Actural_CTR="
    )
    assert shown[1].startswith("day 1 global auc = 0.83208127")


def test_metrics_are_recorded(util, tmp_path):
    fluid.set_flags({"FLAGS_record_dir": str(tmp_path)})
    try:
        util.get_global_metrics(filled_scope())
        record.current().flush()
        text = "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))
    finally:
        fluid.set_flags({"FLAGS_record_dir": ""})
        record.current()
    for name, value in (("global AUC", METRICS[0]), ("global COPC", METRICS[6]), ("global examples", 100)):
        (found,) = re.findall(rf'"{name}": ?\[?([-+.e0-9]+)', text)
        assert float(found) == pytest.approx(value, rel=1e-5)


def test_metrics_are_sums_over_trainers(util, monkeypatch):
    """Twice the same counters, as two alike trainers have, and with them twice the examples."""
    monkeypatch.setattr(
        role_maker.RoleMakerBase, "_gather", lambda self, value, what: np.stack([np.asarray(value)] * 2)
    )
    found = util.get_global_metrics(filled_scope())
    assert found[0] == pytest.approx(METRICS[0]) and found[-1] == 200
    assert found[2:8] == pytest.approx(METRICS[2:8])
    assert found[1] != pytest.approx(METRICS[1])  # groups become certain earlier


def test_absent_counters_are_named(util, capsys):
    assert util.get_global_auc(fluid.Scope()) is None
    assert util.get_global_metrics(filled_scope(), q_name="nope") == [None] * 9
    assert capsys.readouterr().out == "not found auc bucket\nnot found nope\n"


def test_buckets_without_examples(util):
    scope = filled_scope()
    util.set_zero("_generated_var_2", scope)
    assert np.array(scope.find_var("_generated_var_2").get_tensor()).dtype == np.int64
    assert util.get_global_auc(scope) == 0.5


@pytest.mark.parametrize(
    "hours, hourly, found",
    [
        ("{0..2}", False, [["0000", "0030"], ["0100", "0130"], ["0200", "0230"]]),
        ("7 8", True, [["07", "07"], ["08", "08"]]),
    ],
)
def test_passes_of_a_day(util, hours, hourly, found):
    assert util.get_online_pass_interval("{20190720..20190729}", hours, "30", 2, hourly) == found


def test_program_files(util, tmp_path):
    x = fluid.data("x", [None, 4])
    fluid.layers.fc(x, 2)
    path = tmp_path / "program"
    path.write_bytes(fluid.default_main_program().desc.serialize_to_string())
    assert util.program_type_trans(str(tmp_path), "program", False) == "program.pbtxt"
    assert util.program_type_trans(str(tmp_path), "program.pbtxt", True) == "program.pbtxt.bin"
    assert (tmp_path / "program.pbtxt.bin").read_bytes() == path.read_bytes()
    util.parse_program_proto(str(tmp_path / "program.pbtxt"), True, str(tmp_path))
    assert [line.split("'")[3] for line in (tmp_path / "ops.log").read_text().splitlines()[1:]] == [
        "mul",
        "elementwise_add",
    ]
    assert (tmp_path / "vars_persistable.log").read_text().count("{'name': 'fc_0.") == 2
    assert "{'name': 'x', 'shape': '(-1, 4)'" in (tmp_path / "vars_all.log").read_text()
    util.draw_from_program_file(str(path), False, str(tmp_path), "drawn")
    assert "digraph" in (tmp_path / "drawn.dot").read_text()
    path.write_text("no program")
    with pytest.raises(errors.FileFormatError, match="expected a program as text"):
        util.parse_program_proto(str(path), True, str(tmp_path))


def test_two_programs(util, tmp_path, caplog):
    def write(name, size):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fluid.layers.fc(fluid.data("x", [None, 4]), size)
            (tmp_path / name).write_bytes(fluid.default_main_program().desc.serialize_to_string())
        return str(tmp_path / name)

    config = SimpleNamespace(
        train_prog_path=write("train", 2),
        pruned_prog_path=write("pruned", 2),
        is_text_train_program=False,
        is_text_pruned_program=False,
        draw=True,
        draw_out_name="pruned",
    )
    assert util.check_two_programs(config) and (tmp_path / "pruned.dot").exists()
    write("pruned", 3)
    assert not util.check_two_programs(config)
    assert "variable fc_0.w_0: (4, 3) " in caplog.text


def test_rank0(util, capsys, caplog, monkeypatch):
    util.rank0_print("once")
    util.rank0_info("twice")
    util.rank0_error("thrice")
    monkeypatch.setattr(fleet, "worker_index", lambda: 1)
    util.rank0_print("never")
    util.rank0_info("never")
    util.rank0_error("never")
    assert capsys.readouterr().out == "once\n" and [r.message for r in caplog.records] == ["twice", "thrice"]


@pytest.mark.parametrize("hours, minutes, each", [("all", 5, 1), ("{0..3}", 0, 1), ("{0..3}", 5, "0")])
def test_intervals_that_make_no_pass_are_refused(util, hours, minutes, each):
    with pytest.raises(errors.ProgramError, match="expected hours such as"):
        util.get_online_pass_interval("1", hours, minutes, each, False)


def test_check_vars_and_dump_says_what_to_do(util):
    with pytest.raises(errors.UnsupportedError, match="is not in this release: run the program with Executor.run"):
        util.check_vars_and_dump(None)


def test_pslib_is_refused_by_name(util):
    with pytest.raises(errors.UnsupportedError, match=r"FleetUtil\(mode='transpiler'\) works"):
        FleetUtil()
    with pytest.raises(errors.UnsupportedError, match=r"FleetUtil.load_fleet_model: PSLib"):
        util.load_fleet_model("path")
    with pytest.raises(errors.ProgramError, match="Please choose one mode"):
        FleetUtil("mpi")
    with pytest.raises(AttributeError):
        util.nothing  # noqa: B018
