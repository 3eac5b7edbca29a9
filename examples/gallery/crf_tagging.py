"""Sequence labelling with a CRF: chunks of two kinds in sentences, each word tagged as the beginning
or the inside of a chunk, or as outside of all.

    jfluid-launch examples/gallery/crf_tagging.yaml
    python -m jfluid examples/gallery/crf_tagging.py --steps 120

Sentences are drawn from a hidden Markov model, so the best tagging of each is known: what the Viterbi
algorithm finds with the true probabilities.
"""

import numpy as np
import paddle.fluid as fluid
from common import arguments, lengths, parameter, report, train

TAGS = ("O", "B-NAME", "I-NAME", "B-TIME", "I-TIME")
# From a tag (row) to the next one.
TRANSITIONS = np.array(
    [
        [0.70, 0.18, 0.00, 0.12, 0.00],
        [0.30, 0.05, 0.60, 0.05, 0.00],
        [0.45, 0.05, 0.45, 0.05, 0.00],
        [0.15, 0.05, 0.00, 0.05, 0.75],
        [0.55, 0.10, 0.00, 0.05, 0.30],
    ]
)
WORDS = 80
LONGEST = 12
WIDTH = 24


class Sentences:
    """Sentences with their tags, drawn from a hidden Markov model."""

    def __init__(self, seed):
        self.seed = seed
        self.emissions = np.random.RandomState(seed).dirichlet([0.12] * WORDS, len(TAGS))

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        tags = [np.zeros(size, int)]  # of a word before the first one, which is left out
        for _ in range(LONGEST):
            tags.append(self._drawn(draw, TRANSITIONS[tags[-1]]))
        tags = np.stack(tags[1:], axis=1)
        words = self._drawn(draw, self.emissions[tags])
        counts = lengths(draw, size, LONGEST // 3, LONGEST)
        return {
            name: [row[:count] for row, count in zip(values, counts)]
            for name, values in (("words", words), ("tags", tags))
        }

    @staticmethod
    def _drawn(draw, probabilities):
        """A number for each distribution along the last axis."""
        limits = np.cumsum(probabilities, axis=-1)
        return (draw.uniform(size=limits.shape[:-1] + (1,)) * limits[..., -1:] > limits).sum(-1)

    def best_tags(self, words):
        """The most likely tags of a sentence."""
        with np.errstate(divide="ignore"):
            steps, seen = np.log(TRANSITIONS), np.log(self.emissions[:, words].T)
        scores, origins = steps[0] + seen[0], []
        for likelihoods in seen[1:]:
            ways = scores[:, None] + steps
            origins.append(ways.argmax(0))
            scores = ways.max(0) + likelihoods
        path = [scores.argmax()]
        for origin in reversed(origins):
            path.append(origin[path[-1]])
        return np.array(path[::-1])


def tagger(learning_rate):
    """(mean loss of a sentence, the tags that are found)."""
    words = fluid.data("words", [None, 1], dtype="int64", lod_level=1)
    tags = fluid.data("tags", [None, 1], dtype="int64", lod_level=1)
    vectors = fluid.layers.embedding(words, size=[WORDS, WIDTH], param_attr=parameter("vectors", [WORDS, WIDTH]))
    around = fluid.layers.sequence_conv(
        vectors, WIDTH, 3, act="tanh", param_attr=parameter("around", [3 * WIDTH, WIDTH], 0.2)
    )
    scores = fluid.layers.fc(
        [vectors, around],
        len(TAGS),
        param_attr=[parameter("scores_%d" % number, [WIDTH, len(TAGS)], 0.3) for number in range(2)],
    )
    cost = fluid.layers.linear_chain_crf(scores, tags, param_attr=parameter("transitions", [len(TAGS) + 2, len(TAGS)]))
    found = fluid.layers.crf_decoding(scores, param_attr=fluid.ParamAttr(name="transitions"))
    return fluid.layers.mean(cost), found


def main():
    args = arguments(__doc__, steps=120, batch_size=36, learning_rate=0.02, worst_gap=0.02)
    sentences = Sentences(args.seed)
    loss, found = tagger(args.learning_rate)
    fluid.optimizer.Adam(args.learning_rate).minimize(loss)
    predicted = train(loss, found, lambda step: sentences.batch(step, args.batch_size), args)

    right, best = [], []
    for batch, tags in predicted:
        truth = np.concatenate(batch["tags"])
        right.append(tags[:, 0] == truth)
        best.append(np.concatenate([sentences.best_tags(w) for w in batch["words"]]) == truth)
    report("right tags", np.mean(np.concatenate(right)), np.mean(np.concatenate(best)), args.worst_gap)


if __name__ == "__main__":
    main()
