"""The phases of steps, and the graphs of programs, as they come into the record."""

import json
import threading
import time

import numpy as np
import pytest

import jfluid as fluid
from jfluid import record
from jfluid.dashboard import runs
from jfluid.record import graphs, lines
from jfluid.record.phases import NAMES, PREFIX, REST, Phases


@pytest.fixture
def folder(tmp_path):
    fluid.set_flags({"FLAGS_record_dir": str(tmp_path / "run")})
    yield tmp_path / "run"
    fluid.set_flags({"FLAGS_record_dir": ""})
    assert record.current() is None


def test_phases_inside_others_are_taken_from_these():
    phases = Phases()
    phases.on = True
    with phases.phase("compute"):
        begin = time.perf_counter()
        with phases.phase("reader"):
            while time.perf_counter() < begin + 0.02:
                pass
        phases.add("rows", begin, begin + 0.01)
    phases.step()
    found = phases.numbers()
    assert set(found) == {PREFIX + name for name in (*NAMES, REST)}
    assert found[PREFIX + "reader"] >= 20 and found[PREFIX + "rows"] == pytest.approx(10)
    assert found[PREFIX + "compute"] < found[PREFIX + "reader"]
    assert found[PREFIX + "exchange"] == found[PREFIX + "waiting"] == 0
    assert phases.numbers() == {}  # no step has ended since


def test_numbers_are_those_of_a_step():
    phases = Phases()
    phases.on = True
    for _ in range(4):
        phases.add("rows", 1.0, 1.008)
        phases.step()
    assert phases.numbers()[PREFIX + "rows"] == pytest.approx(8)


def test_other_threads_and_processes_without_a_record_count_nothing():
    phases = Phases()
    with phases.phase("reader"):
        pass
    phases.add("rows", 0.0, 1.0)
    phases.step()
    assert phases.steps == 0
    phases.on = True
    thread = threading.Thread(target=lambda: phases.add("rows", 0.0, 1.0))
    thread.start()
    thread.join()
    phases.step()
    assert phases.numbers()[PREFIX + "rows"] == 0


def test_steps_of_both_modes(folder):
    x = fluid.data("x", [None, 4])
    loss = fluid.layers.reduce_sum(x)
    exe = fluid.Executor(fluid.CPUPlace())
    loader = fluid.io.DataLoader.from_generator([x], capacity=2)
    loader.set_batch_generator(lambda: ([np.ones((2, 4), "float32")] for _ in range(3)), fluid.cpu_places(1))
    for feed in loader():
        exe.run(feed=feed, fetch_list=[loss])
    record.current().close()
    found = [line for path in folder.glob("*") for line in lines.Tail(path).lines()]
    record.phases.PHASES.numbers()
    assert record.phases.PHASES.steps >= 3
    assert any(line["kind"] == "program" for line in found)


# ---- graphs --------------------------------------------------------------------------------------


def named(node, *path):
    for name in path:
        (node,) = [child for child in node["children"] if child["name"] == name]
    return node


def program():
    x = fluid.data("x", [None, 4])
    with fluid.name_scope("tower"):
        h = fluid.layers.fc(x, 3)
        with fluid.name_scope("deep"):
            h = fluid.layers.tanh(h)
    with fluid.name_scope("head"):
        loss = fluid.layers.mean(h)
    fluid.optimizer.SGD(0.1).minimize(loss)
    return fluid.default_main_program().global_block().ops


def test_a_graph_is_folded_by_role_scope_and_type():
    ops = program()
    tree = graphs.folded(ops)
    assert tree["ops"] == len(ops) == sum(child["ops"] for child in tree["children"])
    assert {child["name"] for child in tree["children"]} == {"forward", "backward", "update"}
    assert named(tree, "forward", "tower")["ops"] == 3
    assert named(tree, "forward", "tower", "deep", "tanh")["ops"] == 1
    assert named(tree, "forward", "head")["reads"] == ["tower"]
    assert named(tree, "update")["reads"] == ["backward"]
    assert "forward" in named(tree, "backward")["reads"]
    json.dumps(tree)


def test_a_graph_is_bounded(monkeypatch):
    ops = program()
    monkeypatch.setattr(graphs, "_MOST_NODES", 4)
    tree = graphs.folded(ops)

    def count(node):
        return 1 + sum(map(count, node["children"]))

    assert count(tree) == 4 and tree["ops"] == len(ops)


def test_a_graph_of_another_form_is_shown_as_far_as_it_is_one(tmp_path):
    path = tmp_path / "trainer.0.jsonl"
    deep = {"name": "a", "ops": 1, "reads": [], "children": []}
    for _ in range(100):
        deep = {"name": "<b>\x1b", "ops": "x", "reads": [1, "\u202e"], "children": [deep, 5]}
    for tree in (deep, None, [], "text", 7):
        with path.open("ab") as file:
            file.write(lines.encode("program", 1, {"fingerprint": repr(tree)[:8], "tree": tree}))
    found = runs.Runs([tmp_path])
    found.look()
    told = found.everything()["runs"][0]["programs"]
    assert len(told) == 5
    json.dumps(told, allow_nan=False)
    tree = next(iter(told.values()))["tree"]
    assert (tree["name"], tree["ops"], tree["reads"]) == ("<b>\\x1b", 0, ["", "\\u202e"])
    depth = 0
    while tree["children"]:
        tree, depth = tree["children"][0], depth + 1
    assert depth == runs._DEEPEST
