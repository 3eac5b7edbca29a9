"""A saved model that is loaded to be run, exported or served."""

import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from jfluid import errors
from jfluid.executor import Executor
from jfluid.exports.sequences import Sequences, Value
from jfluid.exports.tables import RowSource
from jfluid.files.inference_model import load_asking
from jfluid.files.saved_model import read_saved_model
from jfluid.ir.operator import Operator
from jfluid.ir.variable import Variable
from jfluid.ops import registry
from jfluid.places import CPUPlace, CUDAPlace
from jfluid.scope import Scope, scope_guard
from jfluid.transpiler.parameter_server import remote_look_ups

_MOST_SAMPLE = 1 << 30  # bytes of a random feed


class LoadedModel:
    """Saved model with its parameters in a separate scope.

    Attributes:
        program: the inference program.
        feeds, fetches: its variables, in order.
        scope: its parameters.
        heights: number of rows of the table that each feed of ids is looked up in.
    """

    def __init__(
        self,
        path: str,
        model_filename: str | None = None,
        params_filename: str | None = None,
        place: CPUPlace | CUDAPlace | None = None,
        allow: Iterable[str] = (),
        servers: Sequence[str] = (),
    ):
        """Load the model of a folder.

        Args:
            path: the folder, or the file of its program.
            model_filename, params_filename: as of `load_inference_model`.
            place: the device.
            allow: types of operators that may act.
            servers: "host:port" of the servers that have the rows of the model's tables, in the job's order; empty
                if the folder has the rows.

        Raises FileFormatError where files are missing or damaged, UnsupportedOpError for an operator that is not in
        this release, UntrustedOperatorError for an operator that acts and is not allowed.
        """
        tables = RowSource(path if os.path.isdir(path) else os.path.dirname(path) or ".", servers)
        files = read_saved_model(path, model_filename, params_filename, tables.elsewhere)
        if files.faults:
            raise errors.FileFormatError(files.faults[0])
        if not files.fetches:
            raise errors.FileFormatError(
                f"{path}: the program gives nothing: expected a model that save_inference_model wrote"
            )
        self.scope = Scope()
        self._executor = Executor(CPUPlace() if place is None else place)
        self._lock = threading.Lock()
        self._tables = tables
        with scope_guard(self.scope):
            self.program, names, self.fetches = load_asking(
                files.folder, tables.ask, files.model_file, files.params_file, allow
            )
        self._use_own_tables()
        self.program.refuse_acting()
        block = self.program.global_block()
        unknown = {op.type for op in block.ops if registry.find(op.type) is None}
        if unknown:
            raise errors.UnsupportedOpError(*sorted(unknown))
        self.feeds: list[Variable] = [block.vars[name] for name in names]
        self.heights = _heights(self.operators(), names, block.vars)

    def _use_own_tables(self) -> None:
        """Have look-ups of distributed tables read the tables of the model's folder."""
        for op in self.operators():
            if op.type in _LOOK_UPS and op.attrs.get("is_distributed") and op.input("W")[0] not in self.remote_tables:
                op.attrs["is_distributed"] = False

    def run(self, feed: Mapping[str, Value]) -> list[Value]:
        """Return the values of `fetches` for a feed. Threads may call it."""
        fed = {name: value.tensor() if isinstance(value, Sequences) else value for name, value in feed.items()}
        with self._lock:
            found = self._executor.run(
                self.program, feed=fed, fetch_list=self.fetches, scope=self.scope, return_numpy=False
            )
        return [Sequences(np.asarray(value), value._lod) if value._lod else np.asarray(value) for value in found]

    @property
    def remote_tables(self) -> set[str]:
        """Tables with rows in shards or on servers."""
        return self._tables.names

    def close(self) -> None:
        """Leave the servers of the model's tables; the model cannot be run afterwards."""
        self._executor.close()
        self._tables.close()

    def operators(self) -> list[Operator]:
        """Return the operators of the program, without feeds and fetches."""
        ops = self.program.global_block().ops
        return [op for op in ops if op.type not in ("feed", "fetch")]

    def parameter(self, name: str) -> np.ndarray | None:
        """Return the value of a parameter."""
        var = self.scope.find_var(name)
        return None if var is None else np.array(var.get_tensor())

    def sample_bytes(self, batch: int, longest: int = 3) -> int:
        """Return the most bytes that `sample` returns for the same arguments."""
        return sum(
            math.prod(_largest_shape(var, batch, longest)) * np.dtype(var.np_dtype).itemsize for var in self.feeds
        )

    def check_sizes(self, batch: int, longest: int = 3) -> None:
        """Raise OutOfMemoryError if a feed of `batch` rows takes more than 1 GiB: a file can declare any shape."""
        if (size := self.sample_bytes(batch, longest)) > _MOST_SAMPLE:
            shapes = ", ".join(f"{var.name} {list(var.shape)}" for var in self.feeds)
            raise errors.OutOfMemoryError(
                f"the model declares feeds of {size} bytes for a batch of {batch}, expected at most {_MOST_SAMPLE}: "
                f"{shapes}; save the model with smaller shapes"
            )

    def sample(self, batch: int, seed: int = 0, longest: int = 3) -> dict[str, Value]:
        """Return a random feed of `batch` rows or sequences; ids are 0 or 1, which every table has.

        `longest` bounds the lengths of sequences. Raises OutOfMemoryError for feeds of more than 1 GiB.
        """
        self.check_sizes(batch, longest)
        random = np.random.default_rng(seed)
        return {var.name: _drawn(var, batch, random, longest) for var in self.feeds}


# Operators that look rows up: the slots of ids and of the table.
_LOOK_UPS = {
    "lookup_table": ("Ids", "W"),
    "lookup_table_v2": ("Ids", "W"),
    "lookup_table_dequant": ("Ids", "W"),
}
_HOT = ("one_hot", "one_hot_v2")
# Operators whose results have the elements of their inputs, and no others.
_SAME = {
    *(
        "assign",
        "cast",
        "concat",
        "expand",
        "expand_as",
        "flatten",
        "flatten2",
        "reshape",
        "reshape2",
    ),
    *("slice", "split", "squeeze", "squeeze2", "stack", "strided_slice", "tile", "transpose"),
    *("transpose2", "unsqueeze", "unsqueeze2", "unstack"),
}


def _heights(ops: Sequence[Operator], feeds: Sequence[str], variables: Mapping[str, Variable]) -> dict[str, int]:
    """Return the number of rows of the smallest table that each feed of ids is looked up in.

    A compiled step cannot raise for an id outside of a table: it gives NaN.
    """
    sources: dict[str, set[str]] = {name: {name} for name in feeds}
    found: dict[str, int] = {}
    for op in ops:
        height, ids = 0, ""
        if op.type in _LOOK_UPS:
            ids, slot = _LOOK_UPS[op.type]
            tables = [variables[name] for name in op.inputs.get(slot, ()) if name in variables]
            height = min((table.shape[0] for table in tables if table.shape), default=0)
            if remote_look_ups.is_remote(op):  # rows that the hashes of ids place have no bounds
                height = sum(op.attrs.get("height_sections", ()))
            # the row of padding may be one that the table does not have
            height = 0 if op.attrs.get("padding_idx", -1) >= height else height
        elif op.type in _HOT and not op.inputs.get("depth_tensor"):
            ids = "X"
            height = 0 if op.attrs.get("allow_out_of_range") else op.attrs.get("depth", 0)
        for name in op.inputs.get(ids, ()) if height > 0 else ():
            for source in sources.get(name, ()):
                found[source] = min(height, found.get(source, height))
        into = [name for names in op.outputs.values() for name in names]
        same = op.inputs.get("X", op.inputs.get("Input", ())) if op.type in _SAME else ()
        through = set().union(*(sources.get(name, set()) for name in same))
        sources.update(dict.fromkeys(into, through))
    return found


def _largest_shape(var: Variable, batch: int, longest: int) -> list[int]:
    rows = batch * longest**var.lod_level
    return [rows if i == 0 and size < 0 else batch if size < 0 else size for i, size in enumerate(var.shape)]


def _drawn(var: Variable, batch: int, random: np.random.Generator, longest: int) -> Value:
    """Draw the value of a feed."""
    rows, lengths = batch, []
    for _ in range(var.lod_level):
        lengths.append(random.integers(1, longest + 1, rows))
        rows = int(lengths[-1].sum())
    shape = [rows if i == 0 and size < 0 else batch if size < 0 else size for i, size in enumerate(var.shape)]
    dtype = np.dtype(var.np_dtype)
    drawn = random.integers(0, 2, shape) if dtype.kind in "iub" else random.standard_normal(shape)
    return Sequences.of_lengths(drawn.astype(dtype), lengths) if lengths else drawn.astype(dtype)


def check_exportable(model: LoadedModel, target: str) -> None:
    """Raise UnsupportedError for tables without a file, operators of the host and random numbers."""
    if model.remote_tables:
        raise errors.UnsupportedError(
            f"{target}: table {', '.join(sorted(model.remote_tables))} is in shards or on servers, and an export has "
            "whole tables: save the model by fleet.save_inference_model without program_only"
        )
    ops = [(op, registry.get(op.type)) for op in model.operators()]
    hosts = sorted({op.type for op, found in ops if found.host})
    if hosts:
        raise errors.UnsupportedError(f"{target}: {', '.join(hosts)} run on the host and cannot be exported")
    random = sorted({op.type for op, found in ops if found.rng and not op.attrs.get("is_test")})
    if random:
        raise errors.UnsupportedError(
            f"{target}: {', '.join(random)} draw random numbers, which an exported model would draw once "
            "for all; save the model of a program.clone(for_test=True)"
        )


def compare(
    model: LoadedModel,
    run: Callable[[dict[str, Value]], Sequence[Value]],
    batches: Sequence[int] = (2, 3),
    tolerance: float = 1e-4,
    longest: int = 3,
) -> float:
    """Return the largest difference between the outputs of the model and the outputs of `run(feed)`.

    It is relative to the largest value of each fetch (absolute where that is below 1). Sequences of the feeds have up
    to `longest` rows. Raises OpError where it is above the tolerance, or a shape, an element type or a length differs.
    """
    worst = 0.0
    for batch in batches:
        feed = model.sample(batch, batch, longest)
        for var, expected, found in zip(model.fetches, model.run(feed), run(feed), strict=True):
            difference = _difference(var.name, expected, found)
            if not difference <= tolerance:
                raise errors.OpError(f"{var.name}: the exported model differs by {difference:.2g}, above {tolerance:g}")
            worst = max(worst, difference)
    return worst


def _difference(name: str, expected: Value, found: Value) -> float:
    """Return the relative difference of two values of a fetch. Raises OpError where their forms differ."""
    if isinstance(expected, Sequences) and isinstance(found, Sequences):
        if not all(np.array_equal(a, b) for a, b in zip(expected.lod, found.lod, strict=True)):
            raise errors.OpError(f"{name}: the exported model gives sequences of other lengths")
        return _difference(name, expected.rows, found.rows)
    if isinstance(expected, Sequences) or isinstance(found, Sequences):
        kinds = ("rows without lengths", "sequences")
        raise errors.OpError(
            f"{name}: expected {kinds[isinstance(expected, Sequences)]}, the exported model gives "
            f"{kinds[isinstance(found, Sequences)]}: fetch a variable that has lengths (LoD)"
        )
    one, other = np.asarray(expected), np.asarray(found)
    if one.shape != other.shape or one.dtype != other.dtype:
        raise errors.OpError(
            f"{name}: expected {one.dtype}{list(one.shape)}, the exported model gives {other.dtype}{list(other.shape)}"
        )
    if not one.size:
        return 0.0
    scale = max(1.0, float(np.abs(one.astype("float64")).max()))
    return float(np.abs(one.astype("float64") - other.astype("float64")).max()) / scale
