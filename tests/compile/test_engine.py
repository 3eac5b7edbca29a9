"""The engine: one way to XLA for everything that runs programs."""

import sys
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.runtime.step import CompiledSegment
from tests.distributed.job import Job, batch, net

SOURCE = Path(fluid.__file__).parent


def frames(monkeypatch, run):
    """Names of the functions between `run` and XLA, when a compiled segment is called."""
    found = []
    before = CompiledSegment.__init__

    def init(self, *args, **kwargs):
        before(self, *args, **kwargs)
        call = self.call

        def counted(*arguments):
            names, frame = [], sys._getframe(1)
            while frame is not None and frame.f_code is not run.__code__:
                names.append(frame.f_code.co_qualname)
                frame = frame.f_back
            if frame is not None:
                found.append([n for n in names if "<listcomp>" not in n])
            return call(*arguments)

        self.call = counted

    monkeypatch.setattr(CompiledSegment, "__init__", init)
    run()
    return found


def test_the_way_to_xla_is_short(monkeypatch):
    x = fluid.data("x", [None, 4])
    loss = layers.mean(layers.fc(x, 2))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())

    def run():
        for _ in range(2):
            exe.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[loss])

    first, again = frames(monkeypatch, run)
    assert again == ["OneDevice.call", "StepState.run", "FastPath.run", "Executor._run", "Executor.run"]
    assert len(first) <= 6


def test_the_way_to_xla_is_short_with_servers(monkeypatch):
    with Job(net("sparse", "sgd")) as job:
        job.begin()
        (trainer,) = job.trainers

        def run():
            trainer.executor.run(trainer.main, feed=batch(0), fetch_list=[trainer.built[0]], scope=trainer.scope)

        longest = max(frames(monkeypatch, run), key=len)
        assert longest[-1] == "Executor.run" and len(longest) <= 9


@pytest.mark.parametrize("text", ["wrap_key_data(", "Lowering("])
def test_one_place_traces(text):
    """Outside operators, and what lowers them."""
    found = [str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if text in p.read_text()]
    assert [
        f
        for f in found
        if not f.startswith("ops/")
        and f not in ("compile/lowering/lower.py", "compile/lowering/control.py", "parallel/vmapped_lowering.py")
    ] == ["compile/lowering/trace.py"]


def test_nobody_reaches_into_an_executor():
    """What is behind the Executor is its engine, for everybody."""
    found = [
        p.name
        for p in SOURCE.rglob("*.py")
        if p.name not in ("executor.py", "parallel_executor.py")
        and any(f"{name}._" in p.read_text() for name in ("executor", "exe"))
    ]
    assert found == []
