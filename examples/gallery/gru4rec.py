"""Session-based recommendation with GRU4Rec (Hidasi et al. 2015): which item a visitor looks at next.

    jfluid-launch examples/gallery/gru4rec.yaml
    python -m jfluid examples/gallery/gru4rec.py --steps 300

Some visitors go through the catalogue upwards, others downwards, a few items at a time, with a jump
now and then. Which way one goes shows only in what came before. The probabilities are known, and so is
the least loss.
"""

import numpy as np
import paddle.fluid as fluid
from common import arguments, lengths, parameter, report, train

ITEMS = 20
STRIDES = (1, 2, 3)
JUMP = 0.1  # how likely the next item is any
LONGEST = 8
WIDTH = 48


class Sessions:
    """Sessions of items, each with the items that follow."""

    def __init__(self, seed):
        self.seed = seed

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        direction = draw.choice([-1, 1], size)
        items = [draw.randint(0, ITEMS, size)]
        for _ in range(LONGEST):
            onwards = (items[-1] + direction * draw.choice(STRIDES, size)) % ITEMS
            jumps = draw.uniform(size=size) < JUMP
            items.append(np.where(jumps, draw.randint(0, ITEMS, size), onwards))
        counts = lengths(draw, size, LONGEST // 2, LONGEST)
        sessions = [row[: count + 1] for row, count in zip(np.stack(items, axis=1), counts)]
        return {
            "items": [items[:-1] for items in sessions],
            "following": [items[1:] for items in sessions],
        }

    @staticmethod
    def best_loss(items, following):
        """The mean loss of who knows all but the direction of the session."""
        ways = np.array([0.5, 0.5])  # how likely each direction is, by what came before
        losses = []
        for item, after in zip(items, following):
            seen = np.array(
                [
                    JUMP / ITEMS + (1 - JUMP) * np.mean([(item + way * s) % ITEMS == after for s in STRIDES])
                    for way in (-1, 1)
                ]
            )
            losses.append(-np.log(ways.dot(seen)))
            ways = ways * seen / ways.dot(seen)
        return np.mean(losses)


def gru4rec():
    """(mean loss of a session, mean losses of all sessions)."""
    items = fluid.data("items", [None, 1], dtype="int64", lod_level=1)
    following = fluid.data("following", [None, 1], dtype="int64", lod_level=1)
    vectors = fluid.layers.embedding(
        items,
        size=[ITEMS, WIDTH],
        is_sparse=True,
        param_attr=parameter("items_seen", [ITEMS, WIDTH], 1.0),
    )
    gates = fluid.layers.fc(vectors, 3 * WIDTH, param_attr=parameter("gates", [WIDTH, 3 * WIDTH], 0.3))
    states = fluid.layers.dynamic_gru(gates, WIDTH, param_attr=parameter("recurrent", [WIDTH, 3 * WIDTH], 0.3))
    scores = fluid.layers.fc(states, ITEMS, act="softmax", param_attr=parameter("scores", [WIDTH, ITEMS], 0.3))
    losses = fluid.layers.sequence_pool(fluid.layers.cross_entropy(scores, following), "average")
    return fluid.layers.mean(losses), losses


def main():
    args = arguments(__doc__, steps=300, batch_size=120, learning_rate=0.01, worst_gap=0.1)
    sessions = Sessions(args.seed)
    loss, losses = gru4rec()
    fluid.optimizer.Adam(args.learning_rate).minimize(loss)
    predicted = train(loss, losses, lambda step: sessions.batch(step, args.batch_size), args)

    found = np.mean([losses.mean() for _, losses in predicted])
    best = np.mean(
        [sessions.best_loss(*pair) for batch, _ in predicted for pair in zip(batch["items"], batch["following"])]
    )
    report("loss of the next item", found, best, args.worst_gap)


if __name__ == "__main__":
    main()
