"""MultiSlotDataGenerator: what it prints of samples, and what it refuses."""
import io

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors


class Given(fluid.incubate.data_generator.MultiSlotDataGenerator):
    """Prints the samples that it is given."""

    def __init__(self, samples):
        super().__init__()
        self._samples = samples

    def generate_sample(self, line):
        return lambda: self._samples


def printed(capsys, *samples):
    Given(samples).run_from_memory()
    return capsys.readouterr().out


def test_numbers_of_python_and_numpy(capsys):
    assert printed(capsys, [("a", [1, 2]), ("b", [0.5])]) == "2 1 2 1 0.5\n"
    assert printed(capsys, [("a", [np.int64(3)]), ("b", [np.float32(0.5), 2])]) == "1 3 2 0.5 2\n"


@pytest.mark.parametrize("value", ["7", None, [7], 1j])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(errors.DataError, match=r"slot 'b': expected numbers, found"):
        Given([[("a", [1]), ("b", [1, value])]]).run_from_memory()


@pytest.mark.parametrize("values, kind", [
    ([1, 2], "uint64"), ([1, 2.0], "float"), ([np.int32(1), 2], "uint64"), ([np.int32(1), np.float64(2)], "float")])
def test_a_slot_is_of_whole_numbers_until_one_is_decimal(values, kind):
    generator = Given([[("a", [1]), ("b", [3])], [("a", [1]), ("b", values)]])
    generator.run_from_memory()
    assert generator._proto_info == [("a", "uint64"), ("b", kind)]


def test_samples_have_the_slots_of_the_first_one(monkeypatch):
    class Lines(fluid.incubate.data_generator.MultiSlotDataGenerator):
        def generate_sample(self, line):
            return lambda: [[(line.strip(), [1])]]

    monkeypatch.setattr("sys.stdin", io.StringIO("a\na\nb\n"))
    with pytest.raises(errors.DataError, match=r"a sample has the slots \['b'\], the first one had \['a'\]"):
        Lines().run_from_stdin()
