"""Semantic matching (DSSM, Huang et al. 2013): a query and documents become vectors, and the cosine
of two says how well they match.

    jfluid-launch examples/gallery/semantic_matching.yaml
    python -m jfluid examples/gallery/semantic_matching.py --steps 300

A query and the document that belongs to it have words of one topic, among words of any; another
document is of some other topic. The best rule to tell the two documents apart is known: the odds that
words were drawn with the topic of the query's.
"""

import numpy as np
import paddle.fluid as fluid
from common import arguments, lengths, parameter, report, train

TOPICS = 12
OWN_WORDS = 10  # of each topic
WORDS = TOPICS * OWN_WORDS
FROM_TOPIC = 0.65  # how likely a word is drawn from the topic only
WIDTH = 32


class Searches:
    """Queries, each with a document of its topic and one of another."""

    def __init__(self, seed):
        self.seed = seed

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        topic = draw.randint(0, TOPICS, size)
        other = (topic + draw.randint(1, TOPICS, size)) % TOPICS
        return {
            "query": self._texts(draw, topic, 3, 5),
            "right": self._texts(draw, topic, 6, 10),
            "wrong": self._texts(draw, other, 6, 10),
        }

    @staticmethod
    def _texts(draw, topics, shortest, longest):
        shape = (len(topics), longest)
        words, own = draw.randint(0, WORDS, shape), draw.uniform(size=shape) < FROM_TOPIC
        words = np.where(own, topics[:, None] * OWN_WORDS + words % OWN_WORDS, words)
        counts = lengths(draw, len(topics), shortest, longest)
        return [row[:count] for row, count in zip(words, counts)]

    @staticmethod
    def _likelihoods(words):
        """Of the words by topic, [TOPICS]."""
        own = words[:, None] // OWN_WORDS == np.arange(TOPICS)
        return np.prod((1 - FROM_TOPIC) / WORDS + FROM_TOPIC / OWN_WORDS * own, axis=0)

    def best_preference(self, query, right, wrong):
        """Above 0 where the right document is the likelier one."""
        query, right, wrong = map(self._likelihoods, (query, right, wrong))
        joint = np.outer(query * right, wrong) - np.outer(query * wrong, right)
        return joint.sum() - np.trace(joint)


def vector(words, name):
    """Of texts: [texts, WIDTH]."""
    vectors = fluid.layers.embedding(
        words,
        size=[WORDS, WIDTH],
        is_sparse=True,
        param_attr=parameter("words", [WORDS, WIDTH], 0.3),
    )
    summed = fluid.layers.softsign(fluid.layers.sequence_pool(vectors, "sum"))
    return fluid.layers.fc(
        summed,
        WIDTH,
        param_attr=parameter(name, [WIDTH, WIDTH], 0.4),
        bias_attr=fluid.ParamAttr(name=name + "_bias"),
    )


def matcher():
    """(mean loss, cosine of query and right document less that of query and wrong one)."""
    query, right, wrong = (
        fluid.data(name, [None, 1], dtype="int64", lod_level=1) for name in ("query", "right", "wrong")
    )
    asked = vector(query, "of_query")
    preference = fluid.layers.cos_sim(asked, vector(right, "of_document")) - fluid.layers.cos_sim(
        asked, vector(wrong, "of_document")
    )
    sharp = fluid.layers.scale(preference, 5.0)
    return fluid.layers.mean(fluid.layers.softplus(fluid.layers.scale(sharp, -1.0))), preference


def main():
    args = arguments(__doc__, steps=300, batch_size=60, learning_rate=0.01, worst_gap=0.02)
    searches = Searches(args.seed)
    loss, preference = matcher()
    fluid.optimizer.Adam(args.learning_rate).minimize(loss)
    predicted = train(loss, preference, lambda step: searches.batch(step, args.batch_size), args)

    names = ("query", "right", "wrong")
    best = [
        searches.best_preference(*texts) > 0
        for batch, _ in predicted
        for texts in zip(*(batch[name] for name in names))
    ]
    found = np.concatenate([found for _, found in predicted]) > 0
    report("right document first", found.mean(), np.mean(best), args.worst_gap)


if __name__ == "__main__":
    main()
