"""Data generators: the text is that of Fluid 1.8.5 for the same samples."""

import io
import sys

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors

dg = fluid.incubate.data_generator


class Words(dg.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def read():
            if line is None:
                yield from ([("w", [1, 2, i]), ("l", [0.5])] for i in range(3))
                return
            yield [("w", [int(x) for x in line.split()]), ("l", [1])]
            yield None

        return read


class Backwards(Words):
    def generate_batch(self, samples):
        def read():
            yield from reversed(samples)

        return read


class Texts(dg.MultiSlotStringDataGenerator):
    def generate_sample(self, line):
        return lambda: [[("w", line.split()), ("l", ["1"])]]


@pytest.fixture
def stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("4 5\n6\n7 8 9\n"))


LINES = ["2 4 5 1 1", "1 6 1 1", "3 7 8 9 1 1"]


@pytest.mark.parametrize("kind, want", [(Words, LINES), (Backwards, [LINES[1], LINES[0], LINES[2]]), (Texts, LINES)])
def test_lines_of_the_standard_input(stdin, capsys, kind, want):
    made = kind()
    made.set_batch(2)
    made.run_from_stdin()
    assert capsys.readouterr().out.splitlines() == want


def test_samples_from_memory(capsys):
    made = Backwards()
    made.set_batch(2)
    made.run_from_memory()
    assert capsys.readouterr().out.splitlines() == [
        "3 1 2 1 1 0.5",
        "3 1 2 0 1 0.5",
        "3 1 2 2 1 0.5",
    ]
    assert made._proto_info == [("w", "uint64"), ("l", "float")]


@pytest.mark.parametrize(
    "samples, problem",
    [
        ([("w", [1])], r"expected \(name, list of values\), found 'w'"),
        ([[("w", [])]], "slot 'w' is empty: write a padding value"),
        ([[("w", "12")]], r"expected \(name, list of values\), found \('w', '12'\)"),
        ([[(3, [1])]], r"expected \(name, list of values\)"),
        ([[("w", ["x"])]], "slot 'w': expected numbers, found 'x'"),
        ([{"w": 1}], r"expected a list of \(name, values\)"),
        (
            [[("w", [1])], [("v", [1])]],
            r"a sample has the slots \['v'\], the first one had \['w'\]",
        ),
        ([[("w", [1])], [("w", [1]), ("v", [1])]], r"a sample has the slots \['w', 'v'\]"),
    ],
)
def test_what_is_no_sample(stdin, samples, problem):
    class Wrong(dg.MultiSlotDataGenerator):
        def generate_sample(self, line):
            return lambda: samples

    with pytest.raises(errors.DataError, match=problem):
        Wrong().run_from_stdin()
    with pytest.raises(errors.DataError, match="set_batch: expected a whole number above 0, found 0"):
        Wrong().set_batch(0)
    with pytest.raises(NotImplementedError, match="must override generate_sample"):
        dg.MultiSlotDataGenerator().run_from_memory()


def test_a_generator_may_have_its_own_text(stdin, capsys):
    class Words(dg.DataGenerator):
        def generate_sample(self, line):
            return lambda: [line.split()] if line else [["a", "b"]]

    with pytest.raises(NotImplementedError, match="inherit from MultiSlotDataGenerator"):
        Pairs = type("Pairs", (Words,), {"generate_sample": lambda self, line: lambda: [[("w", [1])]]})
        Pairs().run_from_memory()
    Words._gen_str = lambda self, sample: "+".join(sample) + "\n"
    Words().run_from_memory()
    assert capsys.readouterr().out == "a+b\n"


GENERATOR = """
import sys
sys.path[:0] = %r
import jfluid.incubate.data_generator as dg
class Doubled(dg.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def read():
            yield [("x", [2 * int(line)])]
        return read
Doubled().run_from_stdin()
"""


@pytest.mark.process
def test_as_a_pipe_command_and_through_a_loader(tmp_path):
    (tmp_path / "gen.py").write_text(GENERATOR % (sys.path,))
    (tmp_path / "data.txt").write_text("".join(f"{i}\n" for i in range(5)))
    x = fluid.data("x", [None, 1], "int64")
    made = fluid.DatasetFactory().create_dataset("QueueDataset")
    made.set_use_var([x])
    made.set_batch_size(2)
    made.set_filelist([str(tmp_path / "data.txt")])
    made.set_pipe_command(f"{sys.executable} {tmp_path / 'gen.py'}")
    found = [
        np.array(batch[0]["x"])[:, 0].tolist()
        for batch in fluid.io.DataLoader.from_dataset(made, fluid.cpu_places(1), drop_last=False)
    ]
    assert found == [[0, 2], [4, 6], [8]]
    exe = fluid.Executor(fluid.CPUPlace())
    double = x * 2
    (tmp_path / "data.txt").write_text("".join(f"1 {2 * i}\n" for i in range(5)))
    made.set_pipe_command("cat")
    loader = fluid.io.DataLoader.from_dataset(made, fluid.cpu_places(1), drop_last=True)
    assert [exe.run(feed=feed, fetch_list=[double])[0][:, 0].tolist() for feed in loader] == [
        [0, 4],
        [8, 12],
    ]
