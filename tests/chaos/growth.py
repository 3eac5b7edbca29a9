"""`python -m tests.chaos.growth`: one process that makes and drops whatever a process can make many of, in turn. What
it uses must not grow any more in the second half of the time.

Each minute (or part of a shorter run) is told in a line of JSON. The exit code is 1 when anything has grown.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jfluid as fluid
from jfluid import layers
from jfluid.compile.runtime import executables, jax_caches
from jfluid.dygraph import calls, lazy_graph
from jfluid.dygraph.dygraph_to_static import program_translator
from jfluid.dygraph.lazy_graph import graph_on
from jfluid.ops import shape_cache
from tests.chaos.usage import Usage

_LOOKS = 40  # in the time that is given
_BYTES = 64 << 20  # of executables
# By how much, at most, the last quarter of looks uses more than the one before: a share, and a number.
_MORE = {
    "rss_mib": (0.03, 12),
    "threads": (0, 2),
    "files": (0, 1),
    "objects": (0.05, 20_000),
    "mappings": (0.05, 300),
}
_IN_A_SHORT_RUN = 120.0  # seconds; then bounds are smaller, so that they are reached


def net(width: int, draw: np.random.Generator) -> tuple[fluid.Program, fluid.Program, Any, Any]:
    """(main program, startup program, loss, prediction) of a net of another size each time."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = int(draw.integers(1, 1000))
    with fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 8])
        hidden = layers.fc(x, width, act=str(draw.choice(["relu", "tanh", "sigmoid"])))
        prediction = layers.fc(layers.dropout(hidden, 0.1), 1)
        loss = layers.reduce_mean(layers.square(prediction))
        draw.choice([fluid.optimizer.SGD, fluid.optimizer.Adam])(0.01).minimize(loss)  # type: ignore[operator]
    return main, startup, loss, prediction


def batch(draw: np.random.Generator, rows: int = 4) -> dict[str, np.ndarray]:
    return {"x": draw.standard_normal((rows, 8)).astype(np.float32)}


class Deeds:
    """What the process does again and again; each deed is a method.

    Args:
        folder: for models that are saved.
    """

    def __init__(self, folder: Path, draw: np.random.Generator):
        self._folder, self._draw = folder, draw
        self._lasting = fluid.Executor(fluid.CPUPlace())  # one executor for programs that come and go
        self._shapes = net(8, draw)
        self._lasting.run(self._shapes[1])

    def every(self) -> list[Callable[[], None]]:
        return [getattr(self, n) for n in sorted(vars(type(self))) if not n.startswith(("_", "every"))]

    def _width(self) -> int:
        return int(self._draw.integers(1, 400))

    def programs_and_executors(self) -> None:
        main, startup, loss, _ = net(self._width(), self._draw)
        executor = fluid.Executor(fluid.CPUPlace())
        with fluid.scope_guard(fluid.Scope()):
            executor.run(startup)
            executor.run(main, batch(self._draw), [loss])
            executor.run(main.clone(for_test=True), batch(self._draw), [loss.name])
        if self._draw.random() < 0.5:
            executor.close()

    def programs_of_one_executor(self) -> None:
        main, startup, loss, _ = net(self._width(), self._draw)
        with fluid.scope_guard(fluid.Scope()):
            self._lasting.run(startup)
            self._lasting.run(main, batch(self._draw), [loss])

    def scopes(self) -> None:
        scope = fluid.global_scope()
        for _ in range(20):
            scope.new_scope().var("a").get_tensor().set(np.ones(1000, np.float32), fluid.CPUPlace())
        scope.drop_kids()

    def shapes(self) -> None:
        main, _, loss, _ = self._shapes
        for _ in range(3):
            self._lasting.run(main, batch(self._draw, int(self._draw.integers(1, 3000))), [loss])

    def sequences(self) -> None:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup):
            x = fluid.data("x", [None, 8], lod_level=1)
            pooled = layers.sequence_pool(layers.fc(x, self._width()), "max")
        with fluid.scope_guard(fluid.Scope()):
            self._lasting.run(startup)
            for _ in range(2):
                lengths = self._draw.integers(1, 60, int(self._draw.integers(2, 12))).tolist()
                rows = batch(self._draw, sum(lengths))["x"]
                fed = fluid.create_lod_tensor(rows, [lengths], fluid.CPUPlace())
                self._lasting.run(main, {"x": fed}, [pooled])

    def loops(self) -> None:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup):
            x = fluid.data("x", [None, 8])
            n, i = (
                layers.data("n", [1], dtype="int64", append_batch_size=False),
                layers.zeros([1], "int64"),
            )
            _, found = layers.while_loop(
                lambda i, _: layers.less_than(i, n),
                lambda i, y: [layers.increment(i), layers.scale(y, 1.1)],
                [i, x],
            )
        fed = batch(self._draw) | {"n": np.array([self._draw.integers(1, 9)])}
        self._lasting.run(main, fed, [found])

    def mistakes(self) -> None:
        main, _, loss, _ = net(self._width(), self._draw)
        with fluid.scope_guard(fluid.Scope()):
            for feed in (batch(self._draw), {}, {"x": np.ones((2, 9), np.float32)}):
                try:
                    self._lasting.run(main, feed, [loss])
                except fluid.errors.JFluidError:
                    continue
                raise AssertionError("a wrong program has run")

    def operators_of_imperative_mode(self) -> None:
        with fluid.dygraph.guard(fluid.CPUPlace()):
            net, optimizer = self._eager()
            y = net(self._variable(16))
            for _ in range(int(self._draw.integers(1, 25))):
                number = float(self._draw.random())
                y = layers.relu(net(y)) if number < 0.5 else layers.scale(y, number)
            self._step(net, optimizer, y)

    def shapes_of_imperative_mode(self) -> None:
        with fluid.dygraph.guard(fluid.CPUPlace()):
            net, optimizer = self._eager()
            for _ in range(2):
                x = self._variable(int(self._draw.integers(1, 3000)))
                self._step(net, optimizer, net(net(x)))

    def declared_functions(self) -> None:
        with fluid.dygraph.guard(fluid.CPUPlace()):

            class Declared(fluid.dygraph.Layer):
                def __init__(self) -> None:
                    super().__init__()
                    self.inner = fluid.dygraph.Linear(8, 8)

                @fluid.dygraph.declarative
                def forward(self, x: Any, number: float) -> Any:
                    return layers.reduce_mean(self.inner(x) * number)

            net = Declared()
            for _ in range(3):
                loss = net(self._variable(4), float(self._draw.random()))
                loss.backward()
                loss.numpy()

    def functions_of_python(self) -> None:
        main = fluid.Program()
        size = self._width()
        with fluid.program_guard(main, fluid.Program()):
            x = fluid.data("x", [None, 8])
            out = main.global_block().create_var(name="found", shape=[size], dtype="float32")
            layers.py_func(lambda value: np.full(size, value.sum(), np.float32), x, out)
        self._lasting.run(main, batch(self._draw), [out])

    def _eager(self) -> tuple[Any, Any]:
        net = fluid.dygraph.Linear(8, 8)
        return net, fluid.optimizer.Adam(0.01, parameter_list=net.parameters())

    def _variable(self, rows: int) -> Any:
        return fluid.dygraph.to_variable(batch(self._draw, rows)["x"])

    def _step(self, net: Any, optimizer: Any, result: Any) -> None:
        loss = layers.reduce_mean(result)
        loss.backward()
        optimizer.minimize(loss)
        net.clear_gradients()
        loss.numpy()

    def saved_models(self) -> None:
        main, startup, _, prediction = net(self._width(), self._draw)
        folder = str(self._folder)
        with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup):
            self._lasting.run(startup)
            fluid.save(main, f"{folder}/state")
            fluid.load(main, f"{folder}/state", self._lasting)
            fluid.io.save_inference_model(f"{folder}/model", ["x"], [prediction], self._lasting)
        with fluid.scope_guard(fluid.Scope()):
            read, names, fetches = fluid.io.load_inference_model(f"{folder}/model", self._lasting)
            self._lasting.run(read, dict(zip(names, batch(self._draw).values())), fetches)

    def predictors(self) -> None:
        folder = self._folder / "model"
        if not folder.exists():
            self.saved_models()
        predictor = fluid.core.create_paddle_predictor(fluid.core.AnalysisConfig(str(folder)))
        predictor.clone().run([fluid.core.PaddleTensor(batch(self._draw)["x"])])

    def loaders(self) -> None:
        main, startup, loss, _ = net(self._width(), self._draw)
        with fluid.program_guard(main, startup):
            loader = fluid.io.DataLoader.from_generator([main.global_block().var("x")], capacity=2, iterable=False)
        loader.set_batch_generator(lambda: iter([list(batch(self._draw).values())] * 4))
        with fluid.scope_guard(fluid.Scope()):
            self._lasting.run(startup)
            for _ in range(2):
                loader.start()
                self._lasting.run(main, fetch_list=[loss])
                loader.reset()


def used() -> dict[str, float]:
    """What this process uses, after what is garbage was collected."""
    gc.collect()
    with open("/proc/self/maps") as file:
        mappings = sum(1 for _ in file)
    return Usage.of_this_process().told() | {
        "objects": len(gc.get_objects()),
        "mappings": mappings,
        "traced": jax_caches.traced(),
        "executables_mib": round(executables.KEPT.bytes / (1 << 20), 1),
    }


def grown(looks: Sequence[dict[str, float]]) -> list[str]:
    """What is more in the last quarter of looks than in the one before it: each at its least, since what is within a
    bound goes up to it and down again.
    """
    quarter = len(looks) // 4
    found = []
    for name, (share, number) in _MORE.items():
        before, after = (
            min(look[name] for look in looks[part]) for part in (slice(-2 * quarter, -quarter), slice(-quarter, None))
        )
        if after > before * (1 + share) + number:
            found.append(f"{name}: {before:g}, and in the last quarter {after:g}")
    return found


def _bound(less: int) -> None:
    """Have all bounds be reached within minutes; sooner where `less` is more."""
    fluid.set_flags({executables.FLAG: _BYTES // less})
    jax_caches.MOST_TRACED //= 4 * less
    shape_cache.MOST_IN_MEMORY //= 32 * less
    lazy_graph._MOST_NODES //= 16 * less
    for kept in (calls._calls, calls._outputs, calls._specialised):
        kept._most //= 16 * less
    program_translator._MOST //= 8 * less
    fluid.dygraph.ProgramTranslator.reset()
    graph_on(fluid.CPUPlace().device())._whole._most //= 8 * less


def run(seconds: float, seed: int, tell: Callable[[dict[str, Any]], None], rounds: int = 0) -> list[str]:
    """Do all deeds in turn, for some time or for a number of rounds; returns what has grown."""
    _bound(16 if rounds else 4 if seconds < _IN_A_SHORT_RUN else 1)
    looks: list[dict[str, float]] = []
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        deeds = Deeds(Path(folder), np.random.default_rng(seed))
        start_s, kinds = time.monotonic(), deeds.every()
        for deed in _for_ever(kinds):
            second = time.monotonic() - start_s
            passed = done.total() / (rounds * len(kinds)) if rounds else second / seconds
            if passed >= len(looks) / _LOOKS:
                looks.append(used())
                tell({"second": round(second), "deeds": done.total()} | looks[-1])
            if passed >= 1:
                break
            deed()
            done[deed.__name__] += 1
    found = grown(looks)
    tell({"grown": found, "deeds": dict(done)})
    return found


def _for_ever(deeds: Sequence[Callable[[], None]]) -> Iterator[Callable[[], None]]:
    while True:
        yield from deeds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.growth", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--rounds", type=int, default=0, help="end after so many rounds of all deeds (0: after the time)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", help="a file for the lines, too")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")

    def tell(told: dict[str, Any]) -> None:
        print(json.dumps(told), flush=True)
        if given.out:
            with open(given.out, "a") as file:
                file.write(json.dumps(told) + "\n")

    return 1 if run(60 * given.minutes, given.seed, tell, given.rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
