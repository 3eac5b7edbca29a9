"""Clicks in the format of Criteo's data set, drawn from a known model, so that the best reachable
AUC is known too.

    python examples/criteo_data.py --output_dir output/criteo --lines 204800

A line is the click (0 or 1), 13 counts and 26 categories of eight hexadecimal digits, separated by
tabs; a count or a category may be missing. A click's probability is the sigmoid of a sum: an effect
of each category, an effect of each count's logarithm, and a few effects that two fields have only
together.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COUNTS, CATEGORIES = 13, 26
CLICK_RATE = 0.26
# Strengths: the standard deviations of the three kinds of effects.
CATEGORY_EFFECT, COUNT_EFFECT, PAIR_EFFECT = 0.2, 0.12, 0.5
PAIRS = 3


@dataclass
class Clicks:
    """Lines of clicks and what only the model that drew them knows.

    Attributes:
        labels: int64 [n], 1 for a click.
        probabilities: float64 [n], the true ones.
        columns: the 39 fields of the lines as texts, [n] each.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    columns: list[list[str]]

    def lines(self) -> Iterator[str]:
        """The lines of a file, without newlines."""
        return map("\t".join, zip(map(str, self.labels.tolist()), *self.columns, strict=True))


class ClickModel:
    """A logistic model of clicks whose effects are drawn from `seed`."""

    def __init__(self, seed: int):
        self.seed = seed
        draw = np.random.default_rng(seed)
        sizes = draw.permutation(np.geomspace(4, 300, CATEGORIES).round().astype(int))
        self._chances = [_zipf(size) for size in sizes]
        self._values = [_names(draw, size) for size in sizes]
        self._effects = [
            _centred(draw.normal(0, CATEGORY_EFFECT, size), chances)
            for size, chances in zip(sizes, self._chances, strict=True)
        ]
        self._missing = draw.uniform(0, 0.3, COUNTS)
        self._count_scales = draw.uniform(0.5, 4, COUNTS)
        self._count_effects = draw.normal(0, COUNT_EFFECT, COUNTS)
        # Products of two categories' numbers; of few values each, so that every pair of values is
        # seen often.
        few = np.argsort(sizes)[: 2 * PAIRS].reshape(2, PAIRS).T
        self._pairs = [
            (a, b, PAIR_EFFECT * np.outer(draw.normal(size=sizes[a]), draw.normal(size=sizes[b]))) for a, b in few
        ]
        # A category that changes the effect of a count.
        self._turned = int(np.argsort(sizes)[2 * PAIRS]), int(np.argmax(self._count_scales))
        self._turn = draw.normal(0, COUNT_EFFECT, sizes[self._turned[0]])
        self._bias = 0.0
        self._bias = self._bias_for(CLICK_RATE, np.random.default_rng(seed))

    def draw(self, lines: int, draw: np.random.Generator) -> Clicks:
        """`lines` random clicks."""
        categories, counts, missing = self._fields(lines, draw)
        probabilities = _sigmoid(self._logits(categories, counts))
        columns = [
            np.where(absent, "", column.astype(str)).tolist()
            for column, absent in zip(counts.T, missing.T, strict=True)
        ]
        columns += [values[column].tolist() for values, column in zip(self._values, categories.T, strict=True)]
        labels = (draw.random(lines) < probabilities).astype(np.int64)
        return Clicks(labels, probabilities, columns)

    def _fields(self, lines, draw):
        """Categories by number [n, 26], counts [n, 13] (0 where they are missing), and where they
        are.
        """
        categories = np.stack([draw.choice(len(p), lines, p=p) for p in self._chances], axis=1)
        counts = np.floor(np.exp(np.abs(draw.normal(0, self._count_scales, (lines, COUNTS)))) - 1).astype(np.int64)
        missing = draw.random((lines, COUNTS)) < self._missing
        counts[missing] = 0
        return categories, counts, missing

    def _logits(self, categories, counts):
        logs = np.log1p(counts) - self._count_scales
        found = self._bias + logs @ self._count_effects
        for column, effects in zip(categories.T, self._effects, strict=True):
            found += effects[column]
        for a, b, effects in self._pairs:
            found += effects[categories[:, a], categories[:, b]]
        category, count = self._turned
        return found + self._turn[categories[:, category]] * logs[:, count]

    def _bias_for(self, rate, draw):
        """The constant that makes the mean probability `rate`, by bisection on a sample."""
        categories, counts, _ = self._fields(20000, draw)
        logits, low, high = self._logits(categories, counts), -20.0, 20.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if _sigmoid(logits + middle).mean() < rate else (low, middle)
        return low


def _zipf(size):
    chances = 1 / (np.arange(size) + 3.0)
    return chances / chances.sum()


def _names(draw, size):
    """Different texts of eight hexadecimal digits; in the larger fields the second most frequent
    value is missing.
    """
    names = np.array([f"{number:08x}" for number in draw.choice(2**32, size, replace=False)], dtype=object)
    if size > 20:
        names[1] = ""
    return names


def _centred(effects, chances):
    return effects - effects @ chances


def _sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def area_under_curve(labels, scores):
    """The exact area under the ROC curve: the chance that a click's score is above that of a line
    without, ties half.
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives = int(np.count_nonzero(labels))
    negatives = len(labels) - positives
    if not positives or not negatives:
        raise ValueError("an area needs lines with and without a click; draw more lines")
    return (ranks[labels != 0].sum() - positives * (positives + 1) / 2) / (positives * negatives)


def write(path, clicks):
    """Write the lines to a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in clicks.lines()))


def clicks_of(model, name, lines, files=1):
    """The clicks of one of `files` files, such as train-2.txt, which have so many `lines` together.

    They depend on the model's seed and the file's name only: processes that read different files
    need not make them all.
    """
    kind, number = Path(name).stem.rsplit("-", 1)
    own = lines * (int(number) + 1) // files - lines * int(number) // files
    return model.draw(own, np.random.default_rng([model.seed, *kind.encode(), int(number)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("output/criteo"))
    parser.add_argument("--lines", type=int, default=204_800, help="lines to train with")
    parser.add_argument("--test_lines", type=int, default=20_480)
    parser.add_argument("--files", type=int, default=4, help="files to train with")
    parser.add_argument("--seed", type=int, default=90)
    args = parser.parse_args()
    model = ClickModel(args.seed)
    test = clicks_of(model, "test-0.txt", args.test_lines)
    write(args.output_dir / "test-0.txt", test)
    for number in range(args.files):
        name = f"train-{number}.txt"
        write(args.output_dir / name, clicks_of(model, name, args.lines, args.files))
    print(
        f"{args.output_dir}: {args.lines} lines in {args.files} files, {args.test_lines} to test with, "
        f"{test.labels.mean():.1%} of these clicked"
    )
    print(f"best reachable AUC: {area_under_curve(test.labels, test.probabilities):.4f}")


if __name__ == "__main__":
    main()
