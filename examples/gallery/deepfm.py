"""Clicks predicted by DeepFM (Guo et al. 2017): a factorization machine and a deep network that
share embeddings.

    jfluid-launch examples/gallery/deepfm.yaml
    python -m jfluid examples/gallery/deepfm.py --steps 400

Each sample has one feature in each of eight fields. Whether it is clicked is drawn with a probability
that a hidden factorization machine gives, so the best area under the ROC curve is known.
"""

import numpy as np
import paddle.fluid as fluid
from common import area_under_curve, arguments, parameter, report, train

FIELDS = 8
FEATURES = 100  # of each field
WIDTH = 8


class Clicks:
    """Samples, and their true probabilities of a click."""

    def __init__(self, seed):
        draw = np.random.RandomState(seed)
        self.weights = draw.normal(0, 0.4, FIELDS * FEATURES)
        self.vectors = draw.normal(0, 0.45, (FIELDS * FEATURES, 3))
        self.seed = seed

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        features = draw.randint(0, FEATURES, (size, FIELDS)) + FEATURES * np.arange(FIELDS)
        clicks = draw.uniform(size=size) < self.probabilities(features)
        return {
            "features": features.astype("int64"),
            "click": clicks.astype("float32").reshape(-1, 1),
        }

    def probabilities(self, features):
        vectors = self.vectors[features]
        crossed = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / 2
        return 1 / (1 + np.exp(1 - self.weights[features].sum(1) - crossed))


def embedded(features, name, width):
    vectors = fluid.embedding(
        features,
        size=[FIELDS * FEATURES, width],
        is_sparse=True,
        param_attr=parameter(name, [FIELDS * FEATURES, width], 0.05),
    )
    return fluid.layers.reshape(vectors, [-1, FIELDS, width])


def deepfm():
    """(mean loss, predicted probability of a click)."""
    features = fluid.data("features", [None, FIELDS], dtype="int64")
    click = fluid.data("click", [None, 1], dtype="float32")

    first_order = fluid.layers.reduce_sum(embedded(features, "weights", 1), dim=1)
    vectors = embedded(features, "vectors", WIDTH)
    squared_sum = fluid.layers.square(fluid.layers.reduce_sum(vectors, dim=1))
    sum_of_squares = fluid.layers.reduce_sum(fluid.layers.square(vectors), dim=1)
    second_order = fluid.layers.scale(fluid.layers.reduce_sum(squared_sum - sum_of_squares, dim=1, keep_dim=True), 0.5)
    deep = fluid.layers.reshape(vectors, [-1, FIELDS * WIDTH])
    for layer, size in enumerate((32, 16)):
        deep = fluid.layers.fc(deep, size, act="relu", param_attr=parameter("deep_%d" % layer, [deep.shape[1], size]))
    deep = fluid.layers.fc(deep, 1, param_attr=parameter("deep_out", [16, 1]))

    logit = first_order + second_order + deep
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, click))
    return loss, fluid.layers.sigmoid(logit)


def main():
    args = arguments(__doc__, steps=400, batch_size=256, learning_rate=0.01, worst_gap=0.04)
    clicks = Clicks(args.seed)
    loss, probability = deepfm()
    fluid.optimizer.Adam(args.learning_rate, lazy_mode=True).minimize(loss)
    predicted = train(loss, probability, lambda step: clicks.batch(step, args.batch_size), args)

    truth = np.concatenate([batch["click"] for batch, _ in predicted])[:, 0]
    scores = np.concatenate([found for _, found in predicted])[:, 0]
    best = np.concatenate([clicks.probabilities(batch["features"]) for batch, _ in predicted])
    report("AUC", area_under_curve(truth, scores), area_under_curve(truth, best), args.worst_gap)


if __name__ == "__main__":
    main()
