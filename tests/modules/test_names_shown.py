"""`dir(fluid)` shows Fluid's names and modules, and no internals; all of these names can be used."""

import importlib
import pkgutil
import types
from pathlib import Path

import jfluid as fluid

ORACLE = Path(__file__).parents[2] / "jfluid" / "fluid_names.txt"
MODULES = {
    *("average", "backward", "clip", "compiler", "contrib", "core", "dataset", "dygraph", "evaluator", "executor"),
    *("framework", "initializer", "io", "layers", "lod_tensor", "metrics", "nets", "optimizer", "profiler"),
    *("regularizer", "transpiler", "unique_name", "incubate", "debugger", "param_attr"),
}
INTERNALS = {
    *("caches", "command", "compile", "engine", "environment", "exports", "feeding", "files", "host", "ir", "job"),
    *("launch", "machine_code", "ops", "parallel", "ps_server", "record", "security", "serving", "startup", "surface"),
    *("TYPE_CHECKING", "import_module", "launcher_pipe", "printable", "schema", "jax_log", "places", "scope"),
}


def test_fluids_modules_are_shown_and_no_internals():
    shown = set(dir(fluid))
    assert MODULES <= shown
    assert not INTERNALS & shown
    names = next(line for line in ORACLE.read_text().splitlines() if line.startswith("paddle.fluid: "))
    assert set(names.split()[1:]) <= shown
    assert set(fluid.__all__) <= shown
    own = {m.name for m in pkgutil.iter_modules(fluid.__path__)} & shown - MODULES
    assert own <= {"compiler", "errors", "executor", "install_check", "installation", "interop", "parallel_executor",
                   "progress", "input", "distributed", "trainer_desc", "metrics"}  # fmt: skip


def test_all_that_is_shown_can_be_used():
    for name in dir(fluid):
        value = getattr(fluid, name)
        assert value is not None, name
        if isinstance(value, types.ModuleType):
            assert importlib.import_module(f"jfluid.{name}") is value or value.__name__.startswith("jfluid."), name
