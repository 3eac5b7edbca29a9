"""Vectors of words, learnt from the names in the source of Python's standard library.

    jfluid-launch configs/word2vec.yaml
    python examples/word2vec.py --epochs 6 --words read day lock

Names such as `readHeader` or `write_file` are split into words. A skip-gram model (Mikolov et al.
2013) learns to tell which words stand near a word; words of one use get similar vectors. The
nearest neighbours of a few words are printed, and how many of some pairs that belong together (read
and write, row and column ...) are neighbours.
"""

import argparse
import keyword
import math
import re
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np

import jfluid as fluid
from jfluid.progress import Progress

# Comments and texts come before names, so that the words in them do not count.
TOKEN = re.compile(
    r"""
    \#[^\n]*
  | [a-zA-Z]{0,2} (\"{3}|'{3}) (?:\\.|.)*? \1
  | [a-zA-Z]{0,2} " (?:\\.|[^"\\\n])* "
  | [a-zA-Z]{0,2} ' (?:\\.|[^'\\\n])* '
  | (?P<name>[A-Za-z_]\w*)""",
    re.DOTALL | re.VERBOSE,
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Not on every machine, or tables rather than programs.
LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "encodings",
    "pydoc_data",
}

PAIRS = [
    pair.split()
    for pair in (
        "read write, start stop, min max, left right, first last, encode decode, open close, input output, row column, "
        "source target, send recv, lock release, acquire release, prefix suffix, key value, stdin stdout, host port, "
        "width height, day month, hour minute, year month, push pop, parent child, int float, old new, head tail, "
        "request response, client server, begin end, start end, enter exit, before after, src dst, tuple list, "
        "setattr getattr, upper lower, add sub, seek tell, compress decompress, get set"
    ).split(",")
]


def words_of(source):
    """The words of the names in a Python source text, in order: `readLine(f, max_size)` has read,
    line, max, size.
    """
    names = (match["name"] for match in TOKEN.finditer(source))
    return [
        word.lower()
        for name in names
        if name and not keyword.iskeyword(name)
        for word in WORD.findall(name)
        if len(word) > 1
    ]


def read_corpus(minimum_count):
    """The vocabulary, most frequent word first, how often each occurs, and each file as an array of
    word numbers.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in root.rglob("*.py") if not LEFT_OUT & set(path.relative_to(root).parts))
    if not paths:
        sys.exit(f"{root} holds no source files of the standard library")
    files = [words_of(path.read_text(encoding="utf-8", errors="replace")) for path in paths]
    counted = Counter(word for words in files for word in words).most_common()
    counts = np.array([count for _, count in counted if count >= minimum_count])
    vocabulary = [word for word, _ in counted[: len(counts)]]
    number = {word: n for n, word in enumerate(vocabulary)}
    return (
        vocabulary,
        counts,
        [np.array([number[w] for w in words if w in number], np.int64) for words in files],
    )


def skip_grams(files, counts, args):
    """Pairs (word, word near it) as two arrays.

    Frequent words are thinned out as in word2vec; each word has a window of its own, of 1 to
    `window` words to either side, so that near words count more.
    """
    draw = np.random.default_rng(args.seed)
    kept = np.sqrt(args.frequent / (counts / counts.sum()))
    centres, contexts = [], []
    for words in files:
        words = words[draw.random(len(words)) < kept[words]]
        window = draw.integers(1, args.window + 1, len(words))
        for distance in range(1, min(args.window, len(words) - 1) + 1):
            left, right = words[:-distance], words[distance:]
            to_right, to_left = window[:-distance] >= distance, window[distance:] >= distance
            centres += [left[to_right], right[to_left]]
            contexts += [right[to_right], left[to_left]]
    return np.concatenate(centres), np.concatenate(contexts)


def shuffled_batches(centres, contexts, args):
    """A reader of batches [batch_size, 1] of the pairs, in another order each time; the rest is
    left out.
    """
    shuffling = np.random.default_rng(args.seed)

    def batches():
        order = shuffling.permutation(len(centres))
        for begin in range(0, len(order) - args.batch_size + 1, args.batch_size):
            rows = order[begin : begin + args.batch_size]
            yield centres[rows, np.newaxis], contexts[rows, np.newaxis]

    return batches


def skip_gram_loss(centre, context, counts, args):
    """The mean loss of telling the words near `centre`; makes the vectors, a parameter named
    "vectors".
    """
    size = len(counts)
    vectors = fluid.layers.embedding(
        centre,
        size=[size, args.width],
        is_sparse=True,
        param_attr=fluid.ParamAttr(
            name="vectors",
            initializer=fluid.initializer.Uniform(-0.5 / args.width, 0.5 / args.width),
        ),
    )
    if args.loss == "hsigmoid":
        cost = fluid.layers.hsigmoid(vectors, context, size, is_sparse=True)
    else:
        noise = counts**0.75
        # The bias starts where every word is as likely as any other.
        cost = fluid.layers.nce(
            vectors,
            context,
            size,
            num_neg_samples=args.negatives,
            sampler="custom_dist",
            custom_dist=(noise / noise.sum()).tolist(),
            is_sparse=True,
            param_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(0.0)),
            bias_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(-math.log(size))),
        )
    return fluid.layers.mean(cost)


def train(executor, program, feeds, loss, batches, steps, args):
    """Runs the epochs, `steps` in all, fed by a DataLoader; returns the mean loss of each."""
    loader = fluid.io.DataLoader.from_generator(feed_list=feeds, capacity=8)
    loader.set_batch_generator(batches, places=fluid.CPUPlace())
    means = []
    with Progress(total=steps) as progress:
        for _ in range(args.epochs):
            losses = []
            for (feed,) in loader():
                (value,) = executor.run(program, feed=feed, fetch_list=[loss], return_numpy=False)
                losses.append(value)  # read at the end of the epoch: nothing waits for it before
                progress.step(examples=args.batch_size, loss=value)
            means.append(np.mean([np.array(value) for value in losses]))
    return means


class Neighbours:
    """Words and their vectors, compared by the cosine of their angle."""

    def __init__(self, vocabulary, vectors):
        self.vocabulary, self.number = vocabulary, {word: n for n, word in enumerate(vocabulary)}
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def of(self, word, count):
        """The `count` words nearest to `word`, nearest first."""
        cosines = self.vectors @ self.vectors[self.number[word]]
        cosines[self.number[word]] = -np.inf
        return [self.vocabulary[n] for n in np.argsort(-cosines)[:count]]

    def found_pairs(self, pairs, count=10):
        """Those of the pairs where one word is among the `count` nearest ones of the other, and how
        many are known.
        """
        known = [(a, b) for a, b in pairs if a in self.number and b in self.number]
        return [(a, b) for a, b in known if b in self.of(a, count) or a in self.of(b, count)], len(known)


def draw(path, neighbours, words):
    """A picture of `words`, each with its neighbours, in the plane of the two main axes of their
    vectors.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = {word: [word, *neighbours.of(word, 7)] for word in words}
    shown = [n for group in groups.values() for n in group]
    vectors = neighbours.vectors[[neighbours.number[word] for word in shown]]
    centred = vectors - vectors.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    places = dict(zip(shown, centred @ axes[:2].T, strict=True))
    figure, plot = pyplot.subplots(figsize=(11, 8), layout="constrained")
    for color, (word, group) in zip(
        pyplot.colormaps["tab10"](np.arange(len(groups)) % 10), groups.items(), strict=True
    ):
        plot.scatter(*np.array([places[near] for near in group]).T, color=color, s=12)
        for near in group:
            plot.annotate(
                near,
                places[near],
                color=color,
                fontsize=9,
                fontweight="bold" if near == word else None,
                textcoords="offset points",
                xytext=(3, 3),
            )
    plot.set(title="words and their nearest neighbours, main axes", xticks=[], yticks=[])
    figure.savefig(path, dpi=110)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch_size", type=int, default=2048)
    parser.add_argument("--learning_rate", type=float, default=0.01)
    parser.add_argument("--loss", choices=("nce", "hsigmoid"), default="nce")
    parser.add_argument("--negatives", type=int, default=5, help="noise words of nce for each pair")
    parser.add_argument("--width", type=int, default=64, help="of the vectors")
    parser.add_argument("--window", type=int, default=3, help="how far words may be from each other")
    parser.add_argument(
        "--frequent",
        type=float,
        default=1e-3,
        help="share of the corpus above which words are thinned out",
    )
    parser.add_argument("--minimum_count", type=int, default=20, help="rarer words are left out")
    parser.add_argument(
        "--words",
        nargs="+",
        default=["read", "day", "socket", "lock", "encode", "width", "left", "request"],
        help="whose neighbours are printed",
    )
    parser.add_argument(
        "--minimum_pairs",
        type=float,
        default=0.65,
        help="fail when a smaller share of the pairs are neighbours",
    )
    parser.add_argument("--output_dir", type=Path, default=Path("output/word2vec"))
    parser.add_argument("--seed", type=int, default=90)
    return parser.parse_args()


def main():
    args = parse_arguments()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    vocabulary, counts, files = read_corpus(args.minimum_count)
    unknown = sorted(set(args.words) - set(vocabulary))
    if unknown:
        sys.exit(f"--words: the corpus does not hold {', '.join(unknown)} {args.minimum_count} times")
    centres, contexts = skip_grams(files, counts, args)
    print(f"{counts.sum()} words, {len(vocabulary)} different ones; {len(centres)} pairs", flush=True)
    main_program, startup_program = fluid.default_main_program(), fluid.default_startup_program()
    main_program.random_seed = startup_program.random_seed = args.seed
    centre = fluid.data(name="centre", shape=[None, 1], dtype="int64")
    context = fluid.data(name="context", shape=[None, 1], dtype="int64")
    loss = skip_gram_loss(centre, context, counts, args)
    steps = args.epochs * (len(centres) // args.batch_size)
    rate = fluid.layers.polynomial_decay(args.learning_rate, decay_steps=steps, end_learning_rate=1e-5)
    fluid.optimizer.Adam(learning_rate=rate, lazy_mode=True).minimize(loss)

    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup_program)
    batches = shuffled_batches(centres, contexts, args)
    losses = train(executor, main_program, [centre, context], loss, batches, steps, args)
    print(f"mean loss of each epoch: {' '.join(f'{value:.4f}' for value in losses)}")

    vectors = np.array(fluid.global_scope().find_var("vectors").get_tensor())
    neighbours = Neighbours(vocabulary, vectors)
    for word in args.words:
        print(f"{word:>10}: {' '.join(neighbours.of(word, 8))}")
    found, known = neighbours.found_pairs(PAIRS)
    print(f"pairs that are neighbours: {len(found)} of {known} ({', '.join('/'.join(pair) for pair in found)})")
    np.savez(args.output_dir / "vectors.npz", words=vocabulary, vectors=vectors)
    picture = args.output_dir / "words.png"
    draw(picture, neighbours, args.words)
    print(f"vectors: {args.output_dir / 'vectors.npz'}; picture: {picture}")
    if len(found) < args.minimum_pairs * known:
        sys.exit(f"less than {args.minimum_pairs:.0%} of the pairs are neighbours")


if __name__ == "__main__":
    main()
