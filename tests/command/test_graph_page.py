"""Drawings of programs: `jfluid inspect --html` in a real browser, and SVG in notebooks, both folded by name scope."""

import json
import os
import re
import subprocess
import xml.etree.ElementTree as ET

import pytest

import jfluid as fluid
from jfluid import command
from jfluid.command.graph_page import page
from jfluid.ir.folding import runs
from tests.browser import BROWSER, OPTIONS

HOSTILE = "</script><img src=x onerror=alert(1)>"


def network(layers, scoped=True):
    """A program of `3 * layers + 3` operators, in scopes of two levels."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        y = fluid.data("x", [None, 8])
        for number in range(layers):
            with fluid.name_scope("encoder" if scoped else f"layer{number}"):
                with fluid.name_scope("dense"):
                    y = fluid.layers.fc(y, 8, act="relu")
        fluid.layers.fc(y, 2, act="softmax")
    return main


def test_few_operators_are_drawn_each_and_many_by_scope():
    small, large = network(10).global_block().ops, network(80).global_block().ops
    assert [run.title for run in runs(small, 200)] == [op.type for op in small]
    found = runs(large, 200)
    assert len(found) == 83 and found[0].title == "encoder/dense (3 operators)"
    assert found[0].read == ["x", "fc_0.w_0", "fc_0.b_0"] and "fc_0.tmp_2" in found[0].written
    assert sum(len(run.operators) for run in found) == len(large)
    assert [run.title for run in runs(large, 200)][-3:] == ["mul", "elementwise_add", "softmax"]
    few = runs(large, 10)  # more scopes than boxes
    assert len(few) <= 10 and sum(len(run.operators) for run in few) == len(large)
    assert few[0].title == "mul ... mul (25 operators)"


def test_scopes_fold_from_the_deepest():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        y = fluid.data("x", [None, 8])
        for _ in range(4):
            with fluid.name_scope("block"):
                for _ in range(3):
                    with fluid.name_scope("inner"):
                        y = fluid.layers.scale(fluid.layers.relu(y), 2.0)
    ops = main.global_block().ops
    assert [len(runs(ops, most)) for most in (24, 12, 4)] == [24, 12, 4]
    assert runs(ops, 4)[0].title == "block (6 operators)"


def test_notebooks_draw_programs():
    for layers in (3, 80):
        drawing = ET.fromstring(network(layers)._repr_svg_())
        boxes = [e.text for e in drawing.iter("{http://www.w3.org/2000/svg}title")]
        assert len(boxes) == 1 + (12 if layers == 3 else 83)
    assert repr(network(3)) == "<Program: 12 operators in 1 block(s)>"
    assert str(network(3)).startswith("blocks {")  # as Fluid prints it


def test_names_are_text():
    main = network(1)
    main.global_block().create_var(name=HOSTILE, shape=[1], dtype="float32")
    main.global_block().append_op("assign", {"X": [HOSTILE]}, {"Out": [HOSTILE]}, {})
    text = page(main.global_block(), HOSTILE)
    assert HOSTILE not in text and "<img" not in text
    inside = re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL)[1]
    assert HOSTILE in json.loads(inside)["ops"][-1]["reads"]
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # no network


@pytest.mark.process
@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine (apt-get install chromium)")
def test_the_page_in_a_browser(tmp_path, capsys):
    """The page draws scopes as boxes, unfolds them, finds operators and shows what they have."""
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
        y = fluid.data("x", [None, 8])
        for _ in range(70):
            with fluid.name_scope("encoder"):
                y = fluid.layers.fc(y, 8, act="relu")
        executor.run(fluid.default_startup_program())
        fluid.io.save_inference_model(str(tmp_path / "m"), ["x"], [y], executor)
    path = tmp_path / "graph.html"
    assert command.main(["inspect", str(tmp_path / "m"), "--html", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    steps = """<script>
    const boxes = () => document.querySelectorAll("#drawing g.node").length, seen = [boxes()];
    const click = box => box.dispatchEvent(new MouseEvent("click"));
    click(document.querySelector("g.scope")); seen.push(boxes());
    document.getElementById("unfold").click(); seen.push(boxes());
    const search = document.getElementById("search");
    search.value = "relu"; search.dispatchEvent(new Event("input"));
    seen.push(document.querySelectorAll("g.hit").length); seen.push(document.getElementById("found").textContent);
    const before = svg.getAttribute("viewBox"); document.getElementById("in").click();
    seen.push(before !== svg.getAttribute("viewBox"));
    document.getElementById("next").click(); click(document.querySelector("g.op"));
    seen.push(document.getElementById("panel").textContent.split("\\n")[0]);
    document.body.append("SEEN" + JSON.stringify(seen) + "END");
    </script></html>"""
    path.write_text(path.read_text().replace("</html>", steps))
    done = subprocess.run(
        [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    # the feed, 70 scopes and the operator that names the fetch; three operators in place of a scope; 210 operators
    seen = json.loads(re.search(r"SEEN(\[.*?\])END", done.stdout)[1])
    assert seen == [72, 74, 212, 70, "70 found", True, "mul  in encoder"]
