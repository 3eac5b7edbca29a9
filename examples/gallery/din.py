"""Clicks predicted by DIN (Deep Interest Network, Zhou et al. 2018): the items that a visitor clicked
before count by how much they have to do with the item that is shown now.

    jfluid-launch examples/gallery/din.yaml
    python -m jfluid examples/gallery/din.py --steps 300

Items belong to topics, and a visitor has clicked items of a few. A click is the likelier the more of
them are of the topic of the item shown; its probability is known, and so is the best area under the
ROC curve.
"""

import numpy as np
import paddle.fluid as fluid
from common import area_under_curve, arguments, dense, lengths, parameter, report, train

TOPICS = 8
ITEMS = 10 * TOPICS  # the topic of an item is its number modulo TOPICS
LONGEST = 8  # of the histories, which are padded to it
WIDTH = 16


class Visits:
    """Histories of clicked items, each with an item that is shown and whether it is clicked."""

    def __init__(self, seed):
        self.popularity = np.random.RandomState(seed).normal(0, 0.5, ITEMS)
        self.seed = seed

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        interests = draw.randint(0, TOPICS, (size, 3))
        which = draw.randint(0, interests.shape[1], (size, LONGEST))
        topics = np.take_along_axis(interests, which, axis=1)
        history = topics + TOPICS * draw.randint(0, ITEMS // TOPICS, (size, LONGEST))
        counts = lengths(draw, size, LONGEST // 2, LONGEST)
        there = np.arange(LONGEST) < counts[:, None]
        of_interest = interests[:, 0] + TOPICS * draw.randint(0, ITEMS // TOPICS, size)
        shown = np.where(draw.uniform(size=size) < 0.5, of_interest, draw.randint(0, ITEMS, size))
        batch = {
            "history": (history * there).astype("int64"),
            "there": there.astype("float32"),
            "shown": shown.astype("int64").reshape(-1, 1),
        }
        clicks = draw.uniform(size=size) < self.probabilities(batch)
        batch["click"] = clicks.astype("float32").reshape(-1, 1)
        return batch

    def probabilities(self, batch):
        same = (batch["history"] % TOPICS == batch["shown"] % TOPICS) * batch["there"]
        logits = self.popularity[batch["shown"][:, 0]] + 0.9 * same.sum(1) - 2
        return 1 / (1 + np.exp(-logits))


def embedded(items, name, width):
    """[batch, items of a sample, width]"""
    vectors = fluid.embedding(
        items,
        size=[ITEMS, width],
        is_sparse=True,
        param_attr=parameter(name, [ITEMS, width], 0.3),
    )
    return fluid.layers.reshape(vectors, [-1, items.shape[1], width])


def interest(history, there, shown):
    """The sum of the history's vectors, each by its weight for the item shown: [batch, WIDTH]."""
    shown = fluid.layers.expand(shown, [1, LONGEST, 1])
    pairs = fluid.layers.concat([history, shown, history - shown, history * shown], axis=2)
    weights = dense(dense(pairs, 16, "attention_0", "sigmoid"), 1, "attention_1")
    weights = fluid.layers.elementwise_mul(weights, fluid.layers.unsqueeze(there, [2]))
    return fluid.layers.reduce_sum(fluid.layers.elementwise_mul(history, weights), dim=1)


def din():
    """(mean loss, predicted probability of a click)."""
    history = fluid.data("history", [None, LONGEST], dtype="int64")
    there = fluid.data("there", [None, LONGEST], dtype="float32")
    shown = fluid.data("shown", [None, 1], dtype="int64")
    click = fluid.data("click", [None, 1], dtype="float32")

    item = embedded(shown, "items", WIDTH)
    likes = interest(embedded(history, "items", WIDTH), there, item)
    item = fluid.layers.squeeze(item, [1])
    deep = fluid.layers.concat([likes, item, likes * item], axis=1)
    deep = dense(dense(deep, 24, "deep_0", "relu"), 1, "deep_1")
    logit = deep + fluid.layers.squeeze(embedded(shown, "popularity", 1), [1])
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, click))
    return loss, fluid.layers.sigmoid(logit)


def main():
    args = arguments(__doc__, steps=300, batch_size=240, learning_rate=0.02, worst_gap=0.02)
    visits = Visits(args.seed)
    loss, probability = din()
    fluid.optimizer.Adam(args.learning_rate, lazy_mode=True).minimize(loss)
    predicted = train(loss, probability, lambda step: visits.batch(step, args.batch_size), args)

    truth = np.concatenate([batch["click"] for batch, _ in predicted])[:, 0]
    scores = np.concatenate([found for _, found in predicted])[:, 0]
    best = np.concatenate([visits.probabilities(batch) for batch, _ in predicted])
    report("AUC", area_under_curve(truth, scores), area_under_curve(truth, best), args.worst_gap)


if __name__ == "__main__":
    main()
