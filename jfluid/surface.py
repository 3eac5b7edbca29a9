"""Fluid's module paths and names, by one table.

`fluid_names.txt` lists the public names of each of Fluid's modules, `fluid_modules.txt` what else
its modules hold: `path: names` that are defined there, `path < origin: names` and `path = origin:
names` that it imports from another module, or as one. A path that is no file here becomes a module
that looks its names up where they live; a name that this release does not have becomes an object
that raises UnsupportedError when it is called.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from jfluid import errors
from jfluid.host import collector

# Fluid's path (behind "jfluid.") -> the modules that hold its names. What is not found there is
# looked for in jfluid itself.
ALIASES: dict[str, tuple[str, ...]] = {
    "framework": (
        "ir.program",
        "ir.variable",
        "ir.operator",
        "ir.block",
        "ir.types",
        "ir.graph",
        "places",
        "flags",
        "compat.fluid.framework",
        "ir.complex_variable",
        "dygraph.base",
        "dygraph.varbase",
    ),
    "backward": ("ir.backward",),
    "unique_name": ("ir.unique_name",),
    "reader": ("feeding.reader", "io", "compat.fluid.reader"),
    "data_feeder": ("feeding.data_feeder", "compat.fluid.data_feeder"),
    "layer_helper": ("layers.helper",),
    "data_feed_desc": ("dataset.data_feed_desc",),
    "incubate.data_generator": ("feeding.data_generator",),
    "incubate.fleet.base.role_maker": ("fleet.role_maker",),
    "incubate.fleet.base.fleet_base": ("fleet.base",),
    "incubate.fleet.base.mode": ("fleet.base",),
    "incubate.fleet.collective": ("fleet.collective",),
    "incubate.fleet.parameter_server.distribute_transpiler": (
        "fleet.parameter_server.fleet",
        "fleet.parameter_server.strategies",
        "fleet.parameter_server.runtime_config",
    ),
    "incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy": (
        "fleet.parameter_server.strategies",
        "fleet.parameter_server.runtime_config",
    ),
    "incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy_factory": (
        "fleet.parameter_server.strategies",
    ),  # as Fluid's guide calls it
    "distributed.fs_wrapper": ("fleet.filesystem",),
    "communicator": ("distributed.trainer.communicator",),
    "dygraph.parallel_helper": ("dygraph.parallel",),
    "layers.ops": ("layers",),
    "layers.detection": ("layers",),
    "layers.rnn": ("layers",),
    "layers.device": ("compat.fluid.device",),
    "distribute_lookup_table": ("compat.fluid.distribute_lookup_table",),
    "layers.collective": ("compat.fluid.collective_layers",),
    "learning_rate_decay": ("layers.learning_rate_scheduler",),
    "layers.utils": ("compat.fluid.layers_utils",),
    "dygraph_utils": ("compat.fluid.dygraph_utils",),
    **{
        f"dygraph.dygraph_to_static.{name}": ("dygraph.dygraph_to_static.syntax_trees",)
        for name in ("utils", "ifelse_transformer", "loop_transformer", "variable_trans_func")
    },
    "dygraph.dygraph_to_static.static_analysis": (
        "dygraph.dygraph_to_static.node_kinds",
        "dygraph.dygraph_to_static.syntax_trees",
    ),
    "layers.layer_function_generator": ("compat.fluid.decorators",),
    "complex": ("layers.complex_numbers",),
    "complex.helper": ("layers.complex_numbers",),
    "complex.tensor": ("layers.complex_numbers",),
    "complex.tensor.linalg": ("layers.complex_numbers",),
    "complex.tensor.manipulation": ("layers.complex_numbers",),
    "complex.tensor.math": ("layers.complex_numbers",),
    "op": ("compat.fluid.op",),
    "default_scope_funcs": ("compat.fluid.default_scope_funcs",),
    "wrapped_decorator": ("compat.fluid.decorators",),
    "annotations": ("compat.fluid.decorators",),
    "log_helper": ("compat.fluid.decorators",),
    "transpiler.details": ("compat.fluid.transpiler_details",),
    "transpiler.details.program_utils": ("compat.fluid.transpiler_details",),
    "transpiler.details.checkport": ("compat.fluid.transpiler_details",),
    "contrib.decoder.beam_search_decoder": ("contrib.decoder",),
    "contrib.extend_optimizer.extend_optimizer_with_weight_decay": ("contrib.weight_decay",),
    "contrib.slim.graph": ("contrib.slimming.graph",),
    "contrib.slim.graph.graph_wrapper": ("contrib.slimming.graph",),
    "contrib.slim.graph.executor": ("contrib.slimming.graph",),
    "contrib.slim.prune": ("contrib.slimming.pruner",),
    "contrib.slim.prune.pruner": ("contrib.slimming.pruner",),
    "contrib.slim.distillation": ("contrib.slimming.distiller",),
    "contrib.slim.distillation.distiller": ("contrib.slimming.distiller",),
    "contrib.slim.quantization": ("contrib.quantize.passes", "contrib.quantize.int8_passes"),
    "contrib.slim.quantization.quantization_pass": (
        "contrib.quantize.passes",
        "contrib.quantize.int8_passes",
    ),
    "contrib.memory_usage_calc": ("contrib.statistics",),
    "contrib.op_frequence": ("contrib.statistics",),
    "contrib.model_stat": ("contrib.statistics",),
    "contrib.utils": ("fleet.hdfs", "distributed.lookup_tables"),
    "contrib.utils.lookup_table_utils": ("distributed.lookup_tables",),
    "contrib.utils.hdfs_utils": ("fleet.hdfs",),
    "incubate.fleet.utils.fleet_util": ("fleet.fleet_util",),
    "incubate.fleet.utils.hdfs": ("compat.fluid.fleet_hdfs",),
    "contrib.reader": ("compat.fluid.reader",),
    "contrib.reader.distributed_reader": ("compat.fluid.reader",),
    "dataloader.batch_sampler": ("feeding.indexed",),
    "dataloader.dataset": ("feeding.indexed",),
    "dataloader.dataloader_iter": ("feeding.indexed",),
    "proto.framework_pb2": ("ir.framework_pb2",),
    "proto.data_feed_pb2": ("dataset.data_feed_pb2",),
}
# Files here that Fluid has too, with more in them: what they lack is looked for there.
_WIDER: dict[str, tuple[str, ...]] = {
    "contrib": (
        "contrib.layers",
        "fleet.hdfs",
        "compat.fluid.reader",
        "distributed.lookup_tables",
    ),
    "layers.nn": ("layers", "layers.pulled"),
    "layers.tensor": ("layers",),
    "layers.control_flow": ("layers",),
    "layers.io": ("layers",),
    "layers.loss": ("layers",),
    "layers.metric_op": ("layers",),
    "layers.learning_rate_scheduler": ("layers",),
    "core": (
        "compat.inference",
        "compat.fluid.core",
        "dygraph.varbase",
        "dygraph.backward_strategy",
        "dygraph.layers",
        "dygraph.job",
        "ir.graph",
    ),
    "executor": ("compat.fluid.executor",),
    "initializer": ("compat.fluid.initializer",),
    "io": ("compat.fluid.io",),
    "transpiler.distribute_transpiler": ("compat.fluid.distribute_transpiler",),
}
# Names that in Fluid are a module that can be imported, and a function of the package around it.
FUNCTIONS_TOO = ("data", "layers.rnn")
# Modules with other things under names that are known elsewhere.
_APART = ("dygraph", "contrib.slim", "incubate.hapi", "complex", "dataloader")

# Names of the top level, by the modules that have them; a module of the name itself is one, too.
_LAZY = {
    name: home
    for home, names in {
        "compiler": ("BuildStrategy", "CompiledProgram", "ExecutionStrategy"),
        "executor": ("Executor",),
        "feeding.data_feeder": ("DataFeeder",),
        "feeding.reader": ("batch",),
        "flags": ("get_flags", "set_flags"),
        "input": ("data", "embedding", "one_hot"),
        "installation": (
            "memory_optimize",
            "release_memory",
            "require_version",
        ),
        "interop": ("to_jax",),
        "io": ("load", "load_program_state", "save", "set_program_state"),
        "ir.backward": ("append_backward", "backward", "gradients"),
        "ir.program": (
            "Program",
            "default_main_program",
            "default_startup_program",
            "device_guard",
            "name_scope",
            "program_guard",
        ),
        "ir.unique_name": ("unique_name",),
        "ir.variable": ("Variable",),
        "known_sizes": ("shape_buckets",),
        "lod_tensor": (
            "LoDTensor",
            "LoDTensorArray",
            "Tensor",
            "create_lod_tensor",
            "create_random_int_lodtensor",
        ),
        "parallel_executor": ("ParallelExecutor",),
        "ops.op_library": ("load_op_library",),
        "param_attr": ("ParamAttr", "WeightNormParamAttr"),
        "places": (
            "CPUPlace",
            "CUDAPinnedPlace",
            "CUDAPlace",
            "cpu_places",
            "cuda_pinned_places",
            "cuda_places",
            "is_compiled_with_cuda",
        ),
        "record": ("log", "log_histogram", "log_image"),
        "scope": ("Scope", "global_scope", "scope_guard"),
        "transpiler": (
            "DistributeTranspiler",
            "DistributeTranspilerConfig",
            "HashName",
            "RoundRobin",
        ),
    }.items()
    for name in names
} | {
    "VarBase": "dygraph.varbase",
    "TrainerDesc": "trainer_desc",
    "MultiTrainer": "trainer_desc",
    "DistMultiTrainer": "trainer_desc",
    "PipelineTrainer": "trainer_desc",
    "ComplexVariable": "ir.complex_variable",
    "disable_dygraph": "dygraph.base",
    "disable_imperative": "dygraph.base",
    "enable_dygraph": "dygraph.base",
    "enable_imperative": "dygraph.base",
    "in_dygraph_mode": "dygraph.base",
    "load_dygraph": "dygraph.checkpoint",
    "save_dygraph": "dygraph.checkpoint",
    "check_import_scipy": "compat.paddle.check_import_scipy",
    "DatasetFactory": "dataset",
    "InMemoryDataset": "dataset",
    "QueueDataset": "dataset",
    "DataFeedDesc": "dataset.data_feed_desc",
}

# What to say of names that are missing, by the start of their path.
_HINTS = {
    "dygraph": "this part of imperative mode is not in this release",
    "dataloader": "fluid.io.DataLoader loads by processes and threads of its own",
    "contrib": "this extension is not in this release",
    "incubate.fleet.parameter_server.pslib": "PSLib is Baidu's own and was never published; fluid.incubate.fleet."
    "parameter_server.distribute_transpiler has the fleet of parameter servers",
    "incubate.fleet": "this release has fluid.incubate.fleet.collective and .parameter_server.distribute_transpiler",
    "layers.device": "CompiledProgram.with_data_parallel and ParallelExecutor choose their devices themselves",
    "transpiler": "DistributeTranspiler cuts and places variables; this release does not have this helper of Fluid",
    "layers": "this layer is not in this release",
}


def _read_table() -> dict[str, frozenset[str]]:
    """Fluid's public names by path; "" is `paddle.fluid` itself, with `paddle`'s own."""
    table: dict[str, set[str]] = {}
    for line in Path(__file__).with_name("fluid_names.txt").read_text().splitlines():
        heading, _, names = line.partition(":")
        path = heading.removeprefix("paddle").removeprefix(".fluid").removeprefix(".")
        table.setdefault(path, set()).update(names.split())
    return {path: frozenset(names) for path, names in table.items()}


NAMES = _read_table()


def _read_modules() -> dict[str, list[str]]:
    """Return the lines of `fluid_modules.txt` by path, without the path that begins each line."""
    table: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("fluid_modules.txt").read_text().splitlines():
        path, _, rest = line.partition(":" if ":" in line.split(" ", 1)[0] else " ")
        table.setdefault("" if path == "fluid" else path, []).append(rest)
    return table


MODULES = _read_modules()


@functools.cache
def _imported(path: str) -> dict[str, tuple[str, str]]:
    """Return the names that a module of Fluid imports or keeps private, each with its origin.

    An origin is (the module that defines the name, its name there: "" for the module itself).
    """
    found: dict[str, tuple[str, str]] = {}
    for line in MODULES.get(path, ()):
        heading, _, names = line.rpartition(":")
        kind, _, origin = heading.partition(" ")
        for name in names.split():
            found[name] = (origin if kind else path, "" if kind == "=" else name)
    return found


def _packages() -> frozenset[str]:
    """Every path that a longer one starts with."""
    paths = set(NAMES) | set(ALIASES) | set(MODULES)
    return frozenset(".".join(p.split(".")[:i]) for p in paths for i in range(1, len(p.split("."))))


_PACKAGES = _packages()


class Missing:
    """A public name of Fluid that this release does not have; it raises UnsupportedError when called or subclassed."""

    def __init__(self, path: str):
        self._path = path

    def _refuse(self) -> errors.UnsupportedError:
        hint = next(
            (h for start, h in _HINTS.items() if self._path.startswith(start)),
            "it is not in this release",
        )
        return errors.UnsupportedError(f"fluid.{self._path}: {hint}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._refuse()

    def __instancecheck__(self, value: object) -> bool:
        return False  # there are none

    def __iter__(self) -> Iterator[Any]:
        raise self._refuse()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        raise self._refuse()

    def __getattr__(self, name: str) -> "Missing":
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._path}.{name}")

    def __repr__(self) -> str:
        return f"<fluid.{self._path}: not in this release>"


def look_up(path: str, name: str, sources: Sequence[str] = ()) -> Any:
    """Return the object that Fluid calls `name` in module `path`.

    Raises AttributeError when Fluid has no such name there.
    """
    if not name.startswith("__"):
        if path in ALIASES:
            importlib.import_module("jfluid.layers")
        for source in sources:
            holder = importlib.import_module(f"jfluid.{source}")
            if name in vars(holder) and _offers(holder, path, name):
                return vars(holder)[name]
        if not path and (name in _LAZY or importlib.util.find_spec(f"jfluid.{name}")):
            return _top(name)
        child = f"{path}.{name}" if path else name
        if _is_module(child):
            return importlib.import_module(f"jfluid.{child}")
        if name in NAMES.get(path, ()) or _imported(path).get(name) == (path, name):
            return _defined_elsewhere(path, name)
        if name in _imported(path):
            origin, inner = _imported(path)[name]
            module = importlib.import_module(f"jfluid.{origin}")
            return getattr(module, inner) if inner else module
    # inspect, pytest and others ask each module for private names, and need no suggestion
    near = "" if name.startswith("_") else errors.close_to(name, NAMES.get(path, ()))
    raise AttributeError(f"module 'jfluid{'.' + path if path else ''}' has no attribute {name!r}{near}")


def _top(name: str) -> Any:
    """Return an attribute of `jfluid` itself, imported when it is first used."""
    package = vars(sys.modules["jfluid"])
    # Operators of variables (`a + b`) come with the layers. And threads that are the first to use
    # names at one time import in one order: from two ends each would find the other's half.
    if name in _LAZY or _is_module(name):
        importlib.import_module("jfluid.layers")
    if name not in _LAZY:
        return importlib.import_module(f"jfluid.{name}")
    home = importlib.import_module(f"jfluid.{_LAZY[name]}")
    package[name] = vars(home).get(name, home)  # some names are of the modules themselves
    return package[name]


def _offers(holder: ModuleType, path: str, name: str) -> bool:
    """Return True if a name of a module is Fluid's name in `path`, and no import of the module."""
    if not holder.__name__.startswith("jfluid.compat."):
        return True
    fluids = name in NAMES.get(path, ()) or name in _imported(path)
    return fluids or name in getattr(holder, "__all__", ())


def _is_module(path: str) -> bool:
    return path in ALIASES or path in _PACKAGES or path in NAMES or path in MODULES


def _defined_elsewhere(path: str, name: str) -> Any:
    """Return a name that Fluid defines in `path`, from the package around it or the top, or a `Missing`."""
    around = [""]
    if name not in NAMES.get(path, ()):
        around = [] if path.startswith(_APART) else [path.rpartition(".")[0], ""]
    for package in around if path else ():
        if not package and name in _LAZY:
            _top(name)
        holder = vars(importlib.import_module(f"jfluid.{package}" if package else "jfluid"))
        if name in holder and not isinstance(holder[name], ModuleType):
            return holder[name]
    return Missing(f"{path}.{name}" if path else name)


# Modules of this package that Fluid does not have, and scripts use; and a name that Fluid's table has, and `fluid` has
# not.
_OWN_MODULES = frozenset({"errors", "interop", "progress"})


def _fluid_modules() -> set[str]:
    """Return Fluid's modules of the first level."""
    return {found for found in (*NAMES, *MODULES, *ALIASES, *_WIDER) if found and "." not in found}


def complete(module: ModuleType, path: str, sources: Sequence[str] = ()) -> None:
    """Give a module all of Fluid's names of `path`."""

    def get(name: str) -> Any:
        return look_up(path, name, sources)

    def names() -> list[str]:
        """Return Fluid's names, without names that a module imports from elsewhere."""
        if not path:
            return sorted({*module.__all__, *NAMES[""], *_LAZY, *_fluid_modules(), *_OWN_MODULES})
        return sorted({n for n in vars(module) if not n.startswith("_")} | NAMES.get(path, frozenset()))

    module.__dict__.update(__getattr__=get, __dir__=names)


class _Finder:
    """Makes the modules of the table that are no files.

    It stands last, so that files come first.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        inner = fullname.removeprefix("jfluid.")
        if inner == fullname or not _is_module(inner):
            return None
        loader: Any = self  # not of importlib.abc, which imports much else
        return ModuleSpec(fullname, loader, is_package=inner in _PACKAGES)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = module.__name__.removeprefix("jfluid.")
        module.__doc__ = f"Fluid's `fluid.{path}`: names that live elsewhere in this package (see jfluid/surface.py)."
        complete(module, path, ALIASES.get(path, ()))


class _Completer:
    """Import hook that completes files that are Fluid modules too. It is the first hook."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        inner = fullname.removeprefix("jfluid.")
        if inner == fullname or (inner not in NAMES and inner not in MODULES):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(_execute, loader.exec_module, inner)
        return spec


class _RandomStateKeeper:
    """Import hook that restores NumPy's global random state after the import of JAX.

    JAX draws from it, and scripts seed it before their first use of jfluid.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != "jax":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(_keep_random_state, loader.exec_module)
        return spec


def _keep_random_state(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    random: Any = sys.modules.get("numpy.random")
    if random is None:  # nobody has seeded it
        execute(module)
        return
    state = random.get_state()
    try:
        execute(module)
    finally:
        random.set_state(state)


def _execute(execute: Callable[[ModuleType], None], path: str, module: ModuleType) -> None:
    """Execute the file of a module, then complete it.

    With the first ones come JAX and all operators, of which the collector of garbage would look through each
    object several times.
    """
    with collector.paused(settle=True):
        execute(module)
    complete(module, path, _WIDER.get(path, ()))
    for function in FUNCTIONS_TOO:
        if function.rpartition(".")[0] == path:
            _import_beside_function(function)


def install() -> None:
    """Complete jfluid itself, and install the import hooks for modules of the table."""
    sys.meta_path[:0] = [_Completer(), _RandomStateKeeper()]
    sys.meta_path.append(_Finder())
    complete(sys.modules["jfluid"], "")
    _import_beside_function("data")


def _import_beside_function(path: str) -> None:
    """Import a module that has the name of a function in the same package.

    A later import would replace the function by the module.
    """
    package, _, name = f"jfluid.{path}".rpartition(".")
    names = vars(sys.modules[package])
    function = names.get(name)
    importlib.import_module(f"jfluid.{path}")
    if function is None:
        del names[name]  # it is found when it is first used
    else:
        names[name] = function
