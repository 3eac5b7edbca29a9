"""Vectors of words by skip-grams with negative samples (Mikolov et al. 2013), kept by parameter
servers.

    jfluid-launch examples/gallery/word2vec.yaml
    python -m jfluid examples/gallery/word2vec.py --steps 300

Words belong to topics, and near a word there are mostly words of its topic. How likely each pair is,
is known, and so is the least loss of telling real pairs from drawn ones.
"""

import numpy as np
import paddle.fluid as fluid
from common import arguments, parameter, report, train

WORDS = 240
TOPIC = 12  # words of one topic have numbers in a row
SAME_TOPIC = 0.8  # how likely the word beside a word is drawn from its topic only
NEGATIVES = 4
WIDTH = 24


class Pairs:
    """Words, each with one that stands near it, and some that are drawn from all words."""

    def __init__(self, seed):
        self.seed = seed

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        centre = draw.randint(0, WORDS, (size, 1))
        near = centre - centre % TOPIC + draw.randint(0, TOPIC, (size, 1))
        near = np.where(draw.uniform(size=(size, 1)) < SAME_TOPIC, near, draw.randint(0, WORDS, (size, 1)))
        others = draw.randint(0, WORDS, (size, NEGATIVES))
        real = np.zeros((size, 1 + NEGATIVES), "float32")
        real[:, 0] = 1
        return {
            "centre": centre.astype("int64"),
            "words": np.concatenate([near, others], axis=1).astype("int64"),
            "real": real,
        }

    @staticmethod
    def best_logits(centre, words):
        """The log odds that a word stands near another one, and is not drawn."""
        near = (1 - SAME_TOPIC) / WORDS + SAME_TOPIC / TOPIC * (centre // TOPIC == words // TOPIC)
        return np.log(near * WORDS / NEGATIVES)


def table(ids, name, width):
    """Rows of a table, [batch, ids of a sample, width]."""
    rows = fluid.embedding(
        ids,
        size=[WORDS, width],
        is_sparse=True,
        param_attr=parameter(name, [WORDS, width], 0.3 if width > 1 else 0.0),
    )
    # from parameter servers Fluid 1.8 gets the rows of all samples in one row
    return fluid.layers.reshape(rows, [-1, ids.shape[1], width])


def skip_gram():
    """(mean loss, log odds that each word is the real one)."""
    centre = fluid.data("centre", [None, 1], dtype="int64")
    words = fluid.data("words", [None, 1 + NEGATIVES], dtype="int64")
    real = fluid.data("real", [None, 1 + NEGATIVES], dtype="float32")
    products = fluid.layers.elementwise_mul(table(words, "contexts", WIDTH), table(centre, "vectors", WIDTH))
    biases = table(words, "biases", 1)
    logits = fluid.layers.reduce_sum(products, dim=2) + fluid.layers.squeeze(biases, [2])
    return fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logits, real)), logits


def mean_loss(logits, real):
    return np.mean(np.logaddexp(0, logits) - logits * real)


def main():
    args = arguments(__doc__, steps=300, batch_size=512, learning_rate=0.02, worst_gap=0.02)
    pairs = Pairs(args.seed)
    loss, logits = skip_gram()
    fluid.optimizer.Adam(args.learning_rate).minimize(loss)
    predicted = train(loss, logits, lambda step: pairs.batch(step, args.batch_size), args)

    real = np.concatenate([batch["real"] for batch, _ in predicted])
    found = np.concatenate([found for _, found in predicted])
    best = np.concatenate([pairs.best_logits(batch["centre"], batch["words"]) for batch, _ in predicted])
    report("loss of a pair", mean_loss(found, real), mean_loss(best, real), args.worst_gap)


if __name__ == "__main__":
    main()
