"""The pages on parameter servers list what there is: options, metrics, errors, calls, lines of the
log.
"""

import ast
import re
from pathlib import Path

import pytest

from jfluid.fleet.parameter_server.runtime_config import TrainerRuntimeConfig
from jfluid.ps_server import errors, ps_pb2, specs
from jfluid.ps_server.__main__ import _parser
from jfluid.ps_server.client import Client
from jfluid.ps_server.metrics import ServerMetrics
from jfluid.ps_server.optimizers import OptimizerSpec
from jfluid.ps_server.store import Store

ROOT = Path(__file__).parent.parent.parent
REFERENCE = (ROOT / "docs" / "parameter_server" / "reference.md").read_text()
INTERNALS = (ROOT / "docs" / "parameter_server" / "internals.md").read_text()


def rows(text, section):
    """The rows of the tables below a heading, as lists of cells."""
    body = re.split(r"^#+ ", text.split(f" {section}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = [line.strip("|").split(" | ") for line in body.splitlines() if line.startswith("| ")]
    return [[cell.strip(" |") for cell in row] for row in found]


def names(text, section, pattern):
    """What the first cells below a heading name."""
    return {name for row in rows(text, section) for name in re.findall(pattern, row[0])}


def test_options():
    defined = {option for action in _parser()._actions for option in action.option_strings} - {
        "-h",
        "--help",
    }
    assert names(REFERENCE, "Options of a server", r"`(--[\w-]+)") == defined


def test_metrics():
    collected = {
        sample
        for family in ServerMetrics(Store()).registry.collect()
        for sample in [family.name + "_total" * (family.type == "counter")]
    }
    assert names(REFERENCE, "Metrics", r"`(\w+)`") == collected


def test_errors():
    defined = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    assert names(REFERENCE, "Errors", r"`(\w+)`") == defined
    for name, _, status in rows(REFERENCE, "Errors")[1:]:
        assert f"({status}" in getattr(errors, name.strip("`")).__doc__, name


def test_methods_of_a_client():
    defined = {name for name in vars(Client) if not name.startswith("_")}
    assert names(REFERENCE, "Methods of a client", r"`(\w+)") == defined


def test_fields_and_slots():
    assert names(REFERENCE, "Tables", r"`(\w+)`") >= set(specs.TableSpec.model_fields)
    fields = {name.replace("communicator_prefetch", "prefetch") for name in TrainerRuntimeConfig().runtime_configs}
    assert names(REFERENCE, "Strategies", r"`(\w+)`") >= fields
    assert {kind.__name__ for kind in OptimizerSpec.__subclasses__()} <= names(REFERENCE, "Tables", r"`(\w+)`")


def test_calls():
    defined = {method.name for method in ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"].methods}
    assert names(INTERNALS, "The wire", r"`(\w+)`") == defined


def _texts(node):
    """The texts of a file, with <> for what is put into them."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield re.sub(r"%[-\d.]*[a-z]", "<>", part.value)
        elif isinstance(part, ast.JoinedStr):
            yield "".join(p.value if isinstance(p, ast.Constant) else "<>" for p in part.values)


@pytest.fixture(scope="module")
def logged():
    return [
        text
        for place in ("ps_server/**/*.py", "distributed/**/*.py", "security/snapshot_owner.py")
        for path in (ROOT / "jfluid").glob(place)
        for text in _texts(ast.parse(path.read_text()))
    ]


@pytest.mark.parametrize("line", [row[0].strip("`") for row in rows(REFERENCE, "Lines in the log")[1:]])
def test_lines_of_the_log(line, logged):
    pattern = re.sub(r"<[^>]*>", "<>", line)
    assert any(pattern in text for text in logged), pattern
