"""Find people, places and companies in sentences: a tagger of sequences, in imperative mode.

    jfluid-launch configs/tagger.yaml
    python examples/tagger.py --epochs 2

A small grammar writes the sentences. Most names in them stand for people, for places and for companies alike
("jordan flew to jordan , where jordan sells cars"), and have one to three words, so only the words around them
tell. A tagger that knows each word's most frequent tag is there for comparison.

Two recurrent networks, which a loop in Python unrolls, read each sentence from both ends. Sentences are filled up to
the same length, since a step of imperative mode is compiled for each shape.
"""

import argparse
import collections
import random
import sys
from pathlib import Path

import numpy as np

import jfluid as fluid
from jfluid.progress import Progress

layers, dygraph = fluid.layers, fluid.dygraph

# Most first and last words of names serve for two kinds or all three.
FIRST = {
    "person": "jordan paris austin sydney chelsea georgia ford morgan lincoln kelly mercedes tiffany".split(),
    "place": "jordan paris austin sydney chelsea georgia lincoln orlando madison victoria florence".split(),
    "company": "ford morgan lincoln kelly mercedes tiffany wells victoria madison georgia orlando".split(),
}
LAST = {
    "person": "stanley hill wells banks martin ross hamilton".split(),
    "place": "hill wells banks park hamilton bay city".split(),
    "company": "stanley martin ross banks park brothers systems".split(),
}
MIDDLE = "west north saint mary grace".split()
SENTENCES = (
    "{person} flew to {place}",
    "{person} was born in {place} and works for {company}",
    "shares of {company} fell after {person} resigned",
    "{company} opens a factory near {place}",
    "the mayor of {place} met {person}",
    "{person} , who lives in {place} , sells cars",
    "{company} hired {person} from {company}",
    "it rained in {place} when {person} married {person}",
    "the people of {place} buy less from {company}",
    "{person} told {person} that {company} is for sale",
    "trains from {place} to {place} are late",
    "profits at {company} rose , said {person}",
)
JOINTS = ("while", "and", "but", "because")
PLACES = 16  # words in the longest sentences
# The first word of a name and those that follow it have tags of their own.
TAGS = ["-"] + [f"{kind} {part}" for kind in FIRST for part in ("begins", "goes on")]


def name(chance, kind):
    """The words of a random name."""
    words = [chance.choice(FIRST[kind])]
    if chance.random() < 0.2:
        words.append(chance.choice(MIDDLE))
    if chance.random() < 0.5:
        words.append(chance.choice(LAST[kind]))
    return words


def sentence(chance):
    """A random sentence of up to PLACES words: (words, the numbers of their tags)."""
    text = chance.choice(SENTENCES)
    if chance.random() < 0.4:
        text += f" {chance.choice(JOINTS)} {chance.choice(SENTENCES)}"
    words, tags = [], []
    for word in text.split():
        kind = word.strip("{}")
        if kind == word:
            words.append(word)
            tags.append(0)
            continue
        found = name(chance, kind)
        words += found
        tags += [TAGS.index(f"{kind} begins")] + [TAGS.index(f"{kind} goes on")] * (len(found) - 1)
    return (words, tags) if len(words) <= PLACES else sentence(chance)


def names_in(tags):
    """The names that tags mark: (kind, first place, place behind the last)."""
    found, open_since = set(), None
    for place, number in enumerate([*tags, 0]):
        kind, _, part = TAGS[number].partition(" ")
        if open_since is not None and (part != "goes on" or kind != open_since[0]):
            found.add((*open_since, place))
            open_since = None
        if part == "begins":
            open_since = kind, place
    return found


def f1(predicted, sentences):
    """The harmonic mean of precision and recall of whole names."""
    right = found = there = 0
    for guess, (_, tags) in zip(predicted, sentences):
        right += len(names_in(guess) & names_in(tags))
        found += len(names_in(guess))
        there += len(names_in(tags))
    return 2 * right / max(found + there, 1)


class Tagger(dygraph.Layer):
    """Scores of the tags, [n, PLACES, tags], of words [n, PLACES]: GRUs from both ends."""

    def __init__(self, words, width):
        super().__init__()
        self.width = width
        self.words = dygraph.Embedding(size=[words, width], is_sparse=True)
        self.inputs = dygraph.LayerList([dygraph.Linear(width, 3 * width) for _ in range(2)])
        self.units = dygraph.LayerList([dygraph.GRUUnit(size=3 * width) for _ in range(2)])
        self.out = dygraph.Linear(2 * width, len(TAGS))

    def read(self, seen, there, direction):
        """The states behind each word. Where `there` [n, PLACES, 1] is 0, the state stays."""
        inputs, unit = self.inputs[direction](seen), self.units[direction]
        places = range(PLACES)
        state = layers.zeros([seen.shape[0], self.width], "float32")
        states = [None] * PLACES
        for place in reversed(places) if direction else places:
            new, _, _ = unit(inputs[:, place], state)
            kept = there[:, place]
            state = states[place] = new * kept + state * (1.0 - kept)
        return layers.stack(states, axis=1)

    def forward(self, words, there):
        seen = self.words(words)
        return self.out(layers.concat([self.read(seen, there, d) for d in (0, 1)], axis=2))


def arrays(sentences, numbers):
    """Words [n, PLACES], whether there is one [n, PLACES, 1], and tags [n, PLACES, 1]."""
    words = np.zeros((len(sentences), PLACES), "int64")
    tags, there = np.zeros((2, len(sentences), PLACES, 1))
    for row, (texts, marks) in enumerate(sentences):
        words[row, : len(texts)] = [numbers[text] for text in texts]
        tags[row, : len(texts), 0] = marks
        there[row, : len(texts)] = 1.0
    return words, there.astype("float32"), tags.astype("int64")


def train(tagger, numbers, sentences, test_sentences, args):
    """Run the epochs: (losses by step, F1 of the test sentences by epoch)."""
    rate = dygraph.ExponentialDecay(args.learning_rate, decay_steps=100, decay_rate=0.9)
    adam = fluid.optimizer.Adam(
        rate,
        parameter_list=tagger.parameters(),
        grad_clip=fluid.clip.GradientClipByGlobalNorm(5.0),
    )
    rng, losses, scores = np.random.RandomState(args.seed), [], []
    data, steps = arrays(sentences, numbers), len(sentences) // args.batch_size
    with Progress(total=args.epochs * steps) as progress:
        for _ in range(args.epochs):
            tagger.train()
            for rows in rng.permutation(len(sentences))[: steps * args.batch_size].reshape(steps, -1):
                words, there, tags = (dygraph.to_variable(array[rows]) for array in data)
                lost = layers.softmax_with_cross_entropy(tagger(words, there), tags) * there
                loss = layers.reduce_sum(lost) / layers.reduce_sum(there)
                loss.backward()
                adam.minimize(loss)
                tagger.clear_gradients()
                losses.append(loss.numpy().item())
                progress.step(examples=args.batch_size, loss=losses[-1])
            found = tagged(tagger, numbers, test_sentences)
            scores.append(f1(found, test_sentences))
    return losses, scores


def tagged(tagger, numbers, sentences):
    """The likeliest tags of each sentence's words."""
    tagger.eval()
    words, there, _ = arrays(sentences, numbers)
    scores = tagger(dygraph.to_variable(words), dygraph.to_variable(there)).numpy()
    found = scores.argmax(axis=2).tolist()
    return [tags[: len(texts)] for tags, (texts, _) in zip(found, sentences)]


def most_frequent(sentences, test_sentences):
    """Tags each word as it is tagged most often."""
    counts = collections.defaultdict(collections.Counter)
    for words, tags in sentences:
        for word, tag in zip(words, tags):
            counts[word][tag] += 1
    best = {word: counter.most_common(1)[0][0] for word, counter in counts.items()}
    return [[best.get(word, 0) for word in words] for words, _ in test_sentences]


def draw(path, shown, losses, scores, baseline):
    """A picture of sentences with the names that are found in them, and of the training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = dict(zip(FIRST, ("tab:blue", "tab:green", "tab:orange")))
    figure = pyplot.figure(figsize=(12, 8), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(2, 1))
    axes = above.subplots()
    axes.set_axis_off()
    axes.set(xlim=(0, 150), ylim=(len(shown), -1.2))
    for column, (kind, colour) in enumerate(colours.items()):
        axes.text(24 * column, -0.8, kind, color="white", family="monospace", backgroundcolor=colour)
    for row, ((words, tags), found) in enumerate(shown):
        left = 0
        for word, tag, guess in zip(words, tags, found):
            kind = TAGS[guess].split()[0]
            style = {"color": "white", "backgroundcolor": colours[kind]} if guess else {}
            weight = "normal" if guess == tag else "bold"  # a mistake
            axes.text(left, row, word, family="monospace", fontsize=9, fontweight=weight, **style)
            left += 1.25 * len(word) + 1.8
    left, right = below.subplots(1, 2)
    left.plot(losses, linewidth=1)
    left.set(xlabel="step", ylabel="training loss", yscale="log")
    right.plot(range(1, len(scores) + 1), scores, "o-", label="recurrent tagger")
    right.axhline(baseline, color="gray", linestyle="--", label="each word's most frequent tag")
    right.set(xlabel="epoch", ylabel="F1 of names", ylim=(0, 1.02))
    right.xaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
    right.legend()
    figure.savefig(path, dpi=110)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=1600, help="to train with")
    parser.add_argument("--test_sentences", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--width", type=int, default=32, help="of words' vectors and of states")
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    parser.add_argument("--minimum_f1", type=float, default=0.9)
    parser.add_argument("--output_dir", type=Path, default=Path("output/tagger"))
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args()


def main():
    args = parse_arguments()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    chance = random.Random(args.seed)
    sentences = [sentence(chance) for _ in range(args.sentences)]
    test_sentences = [sentence(chance) for _ in range(args.test_sentences)]
    words = sorted({word for texts, _ in sentences + test_sentences for word in texts})
    numbers = {word: number for number, word in enumerate(words)}
    with dygraph.guard(fluid.CPUPlace()):
        fluid.default_startup_program().random_seed = args.seed
        tagger = Tagger(len(words), args.width)
        losses, scores = train(tagger, numbers, sentences, test_sentences, args)
        found = tagged(tagger, numbers, test_sentences)
        dygraph.save_dygraph(tagger.state_dict(), str(args.output_dir / "tagger"))
    baseline = f1(most_frequent(sentences, test_sentences), test_sentences)
    print(f"F1 of names: {scores[-1]:.3f}; by each word's most frequent tag: {baseline:.3f}")
    picture = args.output_dir / "tagger.png"
    draw(picture, list(zip(test_sentences, found))[:14], losses, scores, baseline)
    print(f"picture: {picture}")
    if scores[-1] < args.minimum_f1:
        sys.exit(f"the F1 is below {args.minimum_f1}")


if __name__ == "__main__":
    main()
