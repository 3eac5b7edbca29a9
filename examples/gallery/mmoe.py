"""Clicks and purchases predicted together by a multi-gate mixture of experts (MMoE, Ma et al. 2018):
both tasks share the experts, and each has a gate of its own that says how much it listens to each.

    jfluid-launch examples/gallery/mmoe.yaml
    python -m jfluid examples/gallery/mmoe.py --steps 400

A visit is some numbers. What makes a click and what makes a purchase likely are two directions in
them, related but not the same, as in the paper's made data; the probabilities are known, and so are
the best areas under the ROC curves.
"""

import numpy as np
import paddle.fluid as fluid
from common import area_under_curve, arguments, dense, report, train

TASKS = ("click", "purchase")
RELATION = 0.5  # the cosine of the two directions
FEATURES = 12
EXPERTS = 4
WIDTH = 16


class Visits:
    """Visits, with the true probabilities of a click and of a purchase."""

    def __init__(self, seed):
        draw = np.random.RandomState(seed)
        first, other = np.linalg.qr(draw.normal(size=(FEATURES, 2)))[0].T
        second = RELATION * first + np.sqrt(1 - RELATION**2) * other
        self.directions = np.stack([first, second], axis=1)
        self.seed = seed

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        visits = draw.normal(size=(size, FEATURES)).astype("float32")
        happens = draw.uniform(size=(size, len(TASKS))) < self.probabilities(visits)
        return {"visit": visits, "happens": happens.astype("float32")}

    def probabilities(self, visits):
        """[batch, tasks]: up and down along the direction of the task."""
        along = visits.dot(self.directions)
        return 1 / (1 + np.exp(1 - 1.5 * along - 2.5 * np.sin(2 * along)))


def mmoe():
    """(mean loss of both tasks, predicted probabilities, [batch, tasks])."""
    visit = fluid.data("visit", [None, FEATURES], dtype="float32")
    happens = fluid.data("happens", [None, len(TASKS)], dtype="float32")
    experts = fluid.layers.reshape(dense(visit, EXPERTS * WIDTH, "experts", "relu"), [-1, EXPERTS, WIDTH])
    logits = []
    for task in TASKS:
        gate = dense(visit, EXPERTS, task + "_gate", "softmax")
        heard = fluid.layers.reduce_sum(fluid.layers.elementwise_mul(experts, gate, axis=0), dim=1)
        tower = dense(heard, WIDTH, task + "_tower", "relu")
        logits.append(dense(tower, 1, task + "_out"))
    logits = fluid.layers.concat(logits, axis=1)
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logits, happens))
    return loss, fluid.layers.sigmoid(logits)


def main():
    args = arguments(__doc__, steps=400, batch_size=240, learning_rate=0.02, worst_gap=0.02)
    visits = Visits(args.seed)
    loss, probabilities = mmoe()
    fluid.optimizer.Adam(args.learning_rate).minimize(loss)
    predicted = train(loss, probabilities, lambda step: visits.batch(step, args.batch_size), args)

    truth = np.concatenate([batch["happens"] for batch, _ in predicted])
    scores = np.concatenate([found for _, found in predicted])
    best = np.concatenate([visits.probabilities(batch["visit"]) for batch, _ in predicted])
    found, reachable = (
        np.mean([area_under_curve(*task) for task in zip(truth.T, values.T)]) for values in (scores, best)
    )
    report("mean AUC of %s and %s" % TASKS, found, reachable, args.worst_gap)


if __name__ == "__main__":
    main()
