"""`jfluid inspect`: feeds, fetches, operators, parameters, sizes, a drawing."""

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from jfluid import command

MODELS = Path(__file__).parents[1] / "golden" / "models"


def inspected(capsys, *arguments):
    code = command.main(["inspect", *map(str, arguments)])
    return code, capsys.readouterr()


def test_a_model_of_fluid_is_described(capsys):
    code, said = inspected(capsys, MODELS / "separate", "--json")
    record = json.loads(said.out)
    assert code == 0 and record["faults"] == [] and record["operators not here"] == []
    assert [v["name"] for v in record["feeds"]] == ["image"]
    assert len(record["fetches"]) >= 1 and record["operators"]["conv2d"] == 1
    assert len(record["parameters"]) == 8
    weight = record["parameters"][0]
    assert weight["name"] == "fc_0.w_0" and weight["dtype"] == "float32"
    assert record["bytes"] == sum(p["bytes"] for p in record["parameters"])


def test_a_combined_file_holds_the_same(capsys):
    both = [
        json.loads(inspected(capsys, MODELS / name, "--json", *more)[1].out)
        for name, more in (("separate", ()), ("combined", ("--params-filename", "params")))
    ]
    assert both[0]["parameters"] == both[1]["parameters"]
    code, said = inspected(capsys, MODELS / "combined")  # found by itself
    assert code == 0 and "parameters: 8 in params" in said.out and "conv2d 1" in said.out


def test_the_drawing_has_every_operator(tmp_path, capsys):
    drawing = tmp_path / "model.svg"
    code, _ = inspected(capsys, MODELS / "separate", "--svg", drawing)
    root = ET.fromstring(drawing.read_text())
    assert code == 0 and root.tag.endswith("svg")
    boxes = [e for e in root.iter() if e.tag.endswith("rect")]
    texts = {e.text for e in root.iter() if e.tag.endswith("text")}
    record = json.loads(inspected(capsys, MODELS / "separate", "--json")[1].out)
    shown = sum(n for t, n in record["operators"].items() if t not in ("feed", "fetch"))
    assert len(boxes) == shown + 1 and set(record["operators"]) - {"feed", "fetch"} <= texts
    places = [(float(b.get("x")), float(b.get("y"))) for b in boxes]
    assert len(set(places)) == len(places) and min(min(p) for p in places) >= 0


def test_faults_are_said(tmp_path, capsys):
    shutil.copytree(MODELS / "separate", model := tmp_path / "model")
    (model / "conv2d_0.b_0").unlink()
    code, said = inspected(capsys, model)
    assert code == 1 and "fault:" in said.out and "conv2d_0.b_0" in said.out


@pytest.mark.parametrize("content", [None, b"", b"\x00\x01nonsense", b"\x08" * 4000])
def test_what_is_no_model_is_refused(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "__model__").write_bytes(content)
    code, said = inspected(capsys, tmp_path)
    assert code == 2 and said.err.startswith("jfluid inspect: ") and said.out == ""
    assert inspected(capsys, tmp_path / "gone")[0] == 2
