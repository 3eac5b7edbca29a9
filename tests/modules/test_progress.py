"""Progress of a training loop: what is shown and how often."""

import io

import numpy as np
import pytest

from jfluid import environment, launcher_pipe, progress
from jfluid.progress import BarDisplay, LineDisplay, Progress, Transfer


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines(monkeypatch, clock):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress(total=20) as bar:
        for step in range(20):
            clock[0] += 1
            bar.step(examples=50, loss=np.array([1 / (step + 1)], "float32"), accuracy=0.5)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "train 1/20  50 examples/s  loss 1  accuracy 0.5"
    assert lines[-1] == "train 20/20  50 examples/s  loss 0.05  accuracy 0.5"
    assert len(lines) == 5, "one line every five seconds, and the last"


def test_the_rate_forgets_a_slow_start(monkeypatch, clock):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress() as bar:
        clock[0] += 60
        for _ in range(100):
            bar.step(examples=8)
            clock[0] += 0.1
    assert stream.getvalue().splitlines()[-1] == "train 100  80 examples/s"


def test_a_metric_must_be_one_number():
    with pytest.raises(ValueError, match="size 1"):
        Progress().step(examples=1, loss=np.zeros(3))


def test_transfers_that_take_long_say_how_far_they_are(monkeypatch, clock):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    for seconds in (0.1, 1.0):
        transfer = Transfer("upload a/b", 9_500_000)
        for _ in range(9):
            clock[0] += seconds
            transfer.add(1_000_000)
        transfer.add(500_000)
        transfer.close()
    assert stream.getvalue().splitlines() == [
        "upload a/b 2/10  1 MB/s",
        "upload a/b 7/10  1 MB/s",
        "upload a/b 9/10  1 MB/s",
    ]


def test_a_bar_of_a_transfer_is_beside_that_of_a_loop(monkeypatch, clock):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress(total=2) as loop:
        loop.step(examples=1)
        transfer = Transfer("upload", 4_000_000)
        clock[0] += 3
        transfer.add(4_000_000)
        transfer.close()
        assert loop._display.live and transfer._display is loop._display
    assert not loop._display.live and "4/4" in stream.getvalue()


def test_bar():
    stream = Terminal()
    bar = BarDisplay(stream)
    report = {
        "description": "train",
        "step": 1,
        "total": 2,
        "rate": 1234.5,
        "metrics": {"loss": 0.25},
        "done": False,
    }
    bar.show(report)
    assert bar.live
    bar.print_above("a line of the script")
    bar.show(report | {"step": 2, "done": True})
    assert not bar.live
    shown = stream.getvalue()
    assert "a line of the script\n" in shown
    assert "2/2" in shown
    assert "1,234 examples/s  loss 0.25" in shown


def test_a_bar_that_has_ended_is_not_drawn_again():
    """The bars of three passes, with a line of the script between, and one that ends while another lives."""
    stream = Terminal()
    bar = BarDisplay(stream)
    report = {"step": 7, "total": 7, "rate": 1.0, "metrics": {}, "done": True}
    for number in range(3):
        bar.show(report | {"description": f"pass{number}", "step": 3, "done": False})
        bar.show(report | {"description": f"pass{number}"})
        assert not bar.live
        before = len(stream.getvalue())
        bar.show(report | {"description": "next", "done": False})
        bar.show(report | {"description": "upload", "done": False})
        bar.show(report | {"description": "upload"})
        bar.show(report | {"description": "next"})
        later = stream.getvalue()[before:]
        assert f"pass{number}" not in later and "next" in later
        assert later.count("upload 7/7  1 examples/s") == 1


def test_display_suits_the_stream():
    assert isinstance(progress.display_on(Terminal()), BarDisplay)
    assert isinstance(progress.display_on(io.StringIO()), LineDisplay)


def test_the_launchers_channel_is_for_its_child_only(monkeypatch):
    monkeypatch.setenv(environment.PROGRESS_CHANNEL, "1:1")
    monkeypatch.setattr(launcher_pipe.os, "getppid", lambda: 2)
    assert isinstance(Progress()._display, LineDisplay)
