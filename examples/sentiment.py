"""Tell praise from blame: a stacked LSTM on reviews whose words alone do not say which it is.

    jfluid-launch configs/sentiment.yaml
    python examples/sentiment.py --epochs 6

A small grammar writes the reviews, of one to five clauses: "nobody would call the plot clever , but
there is no doubt that the acting was superb". A review is positive when most of its clauses are.
Half of them turn their adjective around, and words such as "not" also stand where they turn nothing
around, so that order matters: a bag of words of the same size is trained for comparison.
"""

import argparse
import random
import sys
from pathlib import Path

import numpy as np

import jfluid as fluid
from jfluid.progress import Progress

SUBJECTS = (
    "plot acting music ending dialogue pace camera cast script humour beginning lighting story hero villain "
    "soundtrack editing costume scenery narrator"
).split()
DULL = "dull weak boring clumsy terrible bland awful predictable tiresome shallow poor annoying messy lifeless dreadful"
CLEVER = (
    "clever superb moving charming brilliant witty great gripping elegant fresh good honest subtle delightful lovely"
)
ADJECTIVES = (DULL.split(), CLEVER.split())
ADVERBS = ("", "", "very", "really", "quite", "rather")
# Clauses that say what their adjective says, and clauses that turn it around. Both use "not", "no",
# "nobody" and "never".
STRAIGHT = (
    "the {subject} was {adverb} {adjective}",
    "i found the {subject} {adverb} {adjective}",
    "there is no doubt that the {subject} was {adverb} {adjective}",
    "nobody can deny that the {subject} was {adverb} {adjective}",
    "the {subject} was not only {adjective}",
    "the {subject} was never anything but {adverb} {adjective}",
)
TURNED = (
    "the {subject} was not {adverb} {adjective}",
    "i did not find the {subject} {adverb} {adjective}",
    "nobody would call the {subject} {adverb} {adjective}",
    "the {subject} was anything but {adjective}",
    "the {subject} was never {adverb} {adjective}",
    "i deny that the {subject} was {adverb} {adjective}",
)
JOINTS = (" , ", " and ", " , but ", " . ")
# The picture shows what the LSTM thinks of these behind each word.
READ_ALOUD = (
    "the acting was superb , but the plot was not very clever and i found the ending dull",
    "nobody would call the pace boring , nobody can deny that the cast was witty",
)


def clause(chance):
    """A random clause, and whether it is positive."""
    positive, turned = chance.random() < 0.5, chance.random() < 0.5
    text = chance.choice(TURNED if turned else STRAIGHT).format(
        subject=chance.choice(SUBJECTS),
        adverb=chance.choice(ADVERBS),
        adjective=chance.choice(ADJECTIVES[positive != turned]),
    )
    return " ".join(text.split()), positive


def review(chance, longest):
    """A random review of 1 to `longest` clauses, and its label: 1 when most clauses are positive, 0
    when fewer are.
    """
    while True:
        clauses = [clause(chance) for _ in range(chance.randint(1, longest))]
        balance = sum(1 if positive else -1 for _, positive in clauses)
        if balance:
            words = clauses[0][0]
            for text, _ in clauses[1:]:
                words += chance.choice(JOINTS) + text
            return words, int(balance > 0)


def make_reviews(args):
    """Different reviews [(text, label), ...] to train with and to test with."""
    chance, found = random.Random(args.seed), {}
    while len(found) < args.reviews + args.test_reviews:
        text, label = review(chance, args.clauses)
        found[text] = label
    reviews = list(found.items())
    chance.shuffle(reviews)
    return reviews[: args.reviews], reviews[args.reviews :]


def stacked_lstm(words, vocabulary, args):
    """Fluid's stacked_lstm_net: probabilities of the two labels, [reviews, 2].

    Every second LSTM reads backwards; each gets the projection below it and what the LSTM below
    found.
    """
    embedded = fluid.layers.embedding(words, size=[vocabulary, args.width], is_sparse=True)
    projected = fluid.layers.fc(embedded, size=4 * args.width)
    hidden, _ = fluid.layers.dynamic_lstm(projected, size=4 * args.width)
    for level in range(2, args.levels + 1):
        projected = fluid.layers.fc([projected, hidden], size=4 * args.width)
        hidden, _ = fluid.layers.dynamic_lstm(projected, size=4 * args.width, is_reverse=level % 2 == 0)
    pooled = [fluid.layers.sequence_pool(rows, "max") for rows in (projected, hidden)]
    return fluid.layers.fc(pooled, size=2, act="softmax")


def bag_of_words(words, vocabulary, args):
    """Probabilities of the two labels from the sum of the words' vectors: nothing but which words
    there are.
    """
    embedded = fluid.layers.embedding(words, size=[vocabulary, args.width], is_sparse=True)
    hidden = fluid.layers.fc(fluid.layers.sequence_pool(embedded, "sum"), size=4 * args.width, act="tanh")
    hidden = fluid.layers.fc(hidden, size=4 * args.width, act="tanh")
    return fluid.layers.fc(hidden, size=2, act="softmax")


class Classifier:
    """A network with its programs, parameters and readers.

    Attributes:
        accuracies: the test accuracy behind each epoch.
    """

    def __init__(self, network, numbers, args):
        self._numbers, self._args, self.accuracies = numbers, args, []
        self._train, startup, self._scope = fluid.Program(), fluid.Program(), fluid.Scope()
        self._train.random_seed = startup.random_seed = args.seed
        with fluid.program_guard(self._train, startup):
            self._words = fluid.data(name="words", shape=[None, 1], dtype="int64", lod_level=1)
            self._label = fluid.data(name="label", shape=[None, 1], dtype="int64")
            self._prediction = network(self._words, len(numbers), args)
            self._test = self._train.clone(for_test=True)
            self._loss = fluid.layers.mean(fluid.layers.cross_entropy(self._prediction, self._label))
            self._accuracy = fluid.layers.accuracy(self._prediction, self._label)
            fluid.optimizer.Adam(learning_rate=args.learning_rate).minimize(self._loss)
        self._executor = fluid.Executor(fluid.CPUPlace())
        self._executor.run(startup, scope=self._scope)

    def _samples(self, reviews):
        return [([self._numbers[word] for word in text.split()], label) for text, label in reviews]

    def train(self, reviews, test_reviews, description):
        """Run the epochs; a DataLoader makes the batches of different lengths while steps run."""
        samples = self._samples(reviews)
        reader = fluid.io.batch(
            fluid.io.shuffle(lambda: iter(samples), len(samples)),
            self._args.batch_size,
            drop_last=True,
        )
        loader = fluid.io.DataLoader.from_generator(feed_list=[self._words, self._label], capacity=8)
        loader.set_sample_list_generator(reader, places=fluid.CPUPlace())
        steps = self._args.epochs * (len(samples) // self._args.batch_size)
        with Progress(total=steps, description=description) as progress:
            for _ in range(self._args.epochs):
                for (feed,) in loader():
                    loss, accuracy = self._executor.run(
                        self._train,
                        feed=feed,
                        fetch_list=[self._loss, self._accuracy],
                        scope=self._scope,
                        return_numpy=False,
                    )
                    progress.step(examples=self._args.batch_size, loss=loss, accuracy=accuracy)
                self.accuracies.append(self.accuracy(test_reviews))

    def accuracy(self, reviews):
        """The share of reviews whose label is the more probable one."""
        positive = self.probabilities([text for text, _ in reviews]) > 0.5
        return float(np.mean(positive == np.array([label for _, label in reviews], bool)))

    def probabilities(self, texts):
        """How probable it is that each text is positive."""
        feeder = fluid.DataFeeder(feed_list=[self._words], place=fluid.CPUPlace(), program=self._test)
        found = []
        for begin in range(0, len(texts), 256):
            samples = [(words,) for words, _ in self._samples((text, 0) for text in texts[begin : begin + 256])]
            (value,) = self._executor.run(
                self._test,
                feed=feeder.feed(samples),
                fetch_list=[self._prediction],
                scope=self._scope,
            )
            found.append(value[:, 1])
        return np.concatenate(found)


def draw(path, accuracies, readings):
    """A picture of the test accuracies by epoch, and of what the LSTM thinks of reviews while it
    reads them.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, plots = pyplot.subplots(1 + len(readings), 1, figsize=(11, 3.2 * (1 + len(readings))), layout="constrained")
    for name, values in accuracies.items():
        plots[0].plot(range(1, len(values) + 1), values, "o-", label=name)
    plots[0].set(xlabel="epoch", ylabel="test accuracy", ylim=(0.4, 1.02))
    plots[0].xaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
    plots[0].legend()
    for plot, (text, probabilities) in zip(plots[1:], readings, strict=True):
        words = text.split()
        plot.bar(
            range(len(words)),
            probabilities - 0.5,
            bottom=0.5,
            color=["tab:green" if value > 0.5 else "tab:red" for value in probabilities],
        )
        plot.set_xticks(range(len(words)), words, rotation=45, ha="right")
        plot.set(ylim=(-0.02, 1.02), ylabel="probability of praise\nup to this word")
    figure.savefig(path, dpi=110)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=int, default=12800, help="to train with")
    parser.add_argument("--test_reviews", type=int, default=2000)
    parser.add_argument("--clauses", type=int, default=5, help="of the longest review")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=32, help="of the words' vectors and of the hidden states")
    parser.add_argument("--levels", type=int, default=3, help="LSTMs on top of each other")
    parser.add_argument("--minimum_accuracy", type=float, default=0.95)
    parser.add_argument("--output_dir", type=Path, default=Path("output/sentiment"))
    parser.add_argument("--seed", type=int, default=90)
    return parser.parse_args()


def main():
    args = parse_arguments()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    random.seed(args.seed)  # fluid.io.shuffle uses Python's generator
    reviews, test_reviews = make_reviews(args)
    texts = [text for text, _ in reviews + test_reviews]
    words = sorted({word for text in [*texts, *READ_ALOUD] for word in text.split()})
    lengths = [len(text.split()) for text, _ in reviews]
    print(
        f"{len(reviews)} reviews of {min(lengths)} to {max(lengths)} words, {len(words)} different ones",
        flush=True,
    )

    numbers = {word: number for number, word in enumerate(words)}
    classifiers = {
        "stacked LSTM": Classifier(stacked_lstm, numbers, args),
        "bag of words": Classifier(bag_of_words, numbers, args),
    }
    for name, classifier in classifiers.items():
        classifier.train(reviews, test_reviews, name)
    accuracies = {name: classifier.accuracies for name, classifier in classifiers.items()}
    print("; ".join(f"{name}: test accuracy {values[-1]:.2%}" for name, values in accuracies.items()))

    lstm = classifiers["stacked LSTM"]
    shown = test_reviews[:8]
    for (text, label), probability in zip(shown, lstm.probabilities([text for text, _ in shown]), strict=True):
        print(f"{'praise' if label else 'blame ':6}  predicted {probability:4.0%}: {text}")
    readings = []
    for text in READ_ALOUD:
        read = text.split()
        readings.append((text, lstm.probabilities([" ".join(read[:end]) for end in range(1, len(read) + 1)])))
    picture = args.output_dir / "sentiment.png"
    draw(picture, accuracies, readings)
    print(f"picture: {picture}")
    if accuracies["stacked LSTM"][-1] < args.minimum_accuracy:
        sys.exit(f"the test accuracy is below {args.minimum_accuracy:.0%}")


if __name__ == "__main__":
    main()
