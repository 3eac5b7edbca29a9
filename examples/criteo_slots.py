"""The pipe command of ctr_dnn: turns Criteo's lines into MultiSlot text.

    python examples/criteo_slots.py --rows 100001 < train-0.txt > train-0.slots

A line gets 28 slots: `dense`, the 13 counts, of which it takes logarithms (a missing count is 0);
`C1` to `C26`, an id for each category; `click`. An id is a hash of the category's position and
text, from 1 to rows - 1.
"""

import argparse
import math
from zlib import crc32

from jfluid.incubate.data_generator import MultiSlotDataGenerator

COUNTS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]


class CriteoSlots(MultiSlotDataGenerator):
    """Slots of Criteo's lines; `rows` is the height of the table that the ids are for."""

    def __init__(self, rows):
        super().__init__()
        if rows < 2:
            raise ValueError(f"rows: expected at least 2, found {rows}")
        self._rows = rows

    def sample(self, line):
        """The slots of a line: [(name, values), ...]. Raises ValueError for a line without 40
        fields.
        """
        label, *fields = line.rstrip("\n").split("\t")
        if len(fields) != len(COUNTS) + len(CATEGORIES):
            raise ValueError(f"expected 40 fields separated by tabs, found {len(fields) + 1}: {line!r}")
        counts, categories = fields[: len(COUNTS)], fields[len(COUNTS) :]
        # A quarter of the logarithm lies between 0 and about 3: a range that suits the network.
        slots = [
            (
                "dense",
                [round(math.log1p(max(int(count), 0)) / 4, 5) if count else 0.0 for count in counts],
            )
        ]
        slots += [
            (name, [1 + crc32(f"{name}={text}".encode()) % (self._rows - 1)])
            for name, text in zip(CATEGORIES, categories, strict=True)
        ]
        return [*slots, ("click", [int(label)])]

    def generate_sample(self, line):
        def read():
            yield self.sample(line)

        return read


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, required=True, help="height of the table that the ids are for")
    CriteoSlots(parser.parse_args().rows).run_from_stdin()


if __name__ == "__main__":
    main()
