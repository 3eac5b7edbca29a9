"""The programs that several devices and processes train."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import jfluid as fluid

CLASSES, PIXELS, IDS, SLOTS = 10, 12, 50, 4
STEPS = 6
IMAGE_RATE = 0.05


def images_loss(batch_norm: bool = False) -> Any:
    """Build a small convolutional network; returns its loss, without an optimizer."""
    image = fluid.data("image", [None, 1, PIXELS, PIXELS], "float32")
    label = fluid.data("label", [None, 1], "int64")
    hidden = fluid.layers.conv2d(image, 8, 3, padding=1, act=None if batch_norm else "relu")
    if batch_norm:
        hidden = fluid.layers.batch_norm(hidden, act="relu")
    hidden = fluid.layers.pool2d(hidden, 2, pool_stride=2)
    probability = fluid.layers.fc(hidden, CLASSES, act="softmax")
    return fluid.layers.mean(fluid.layers.cross_entropy(probability, label))


def images(batch_norm: bool = False, half: bool = False) -> Any:
    """Build the network; returns its loss, which is minimized, in 16-bit floats if `half`."""
    loss = images_loss(batch_norm)
    optimizer: Any = fluid.optimizer.Momentum(IMAGE_RATE, momentum=0.9)
    if half:
        optimizer = fluid.contrib.mixed_precision.decorate(optimizer, init_loss_scaling=8.0)
    optimizer.minimize(loss)
    return loss


def compressed() -> Any:
    """Build a network with a layer large enough that its gradient is compressed; returns its loss, which is minimized.

    All of the gradient is sent, so that the number of replicas changes nothing.
    """
    image = fluid.data("image", [None, 1, PIXELS, PIXELS], "float32")
    label = fluid.data("label", [None, 1], "int64")
    hidden = fluid.layers.fc(image, 128, act="relu")  # 18432 weights
    probability = fluid.layers.fc(hidden, CLASSES, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(probability, label))
    fluid.optimizer.DGCMomentumOptimizer(IMAGE_RATE, 0.9, 1, sparsity=[0.0]).minimize(loss)
    return loss


def image_batch(step: int, rows: int) -> dict[str, np.ndarray]:
    """Return a batch of `images`, the same on every machine."""
    random = np.random.RandomState(step)
    return {
        "image": random.randn(rows, 1, PIXELS, PIXELS).astype("float32"),
        "label": random.randint(0, CLASSES, (rows, 1)).astype("int64"),
    }


def clicks() -> Any:
    """Build a small click model with a sparse table; returns its loss, without an optimizer."""
    dense = fluid.data("dense", [None, 4], "float32")
    label = fluid.data("label", [None, 1], "float32")
    table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Constant(0.1))
    rows = [
        fluid.layers.embedding(fluid.data(f"slot_{i}", [None, 1], "int64"), [IDS, 8], is_sparse=True, param_attr=table)
        for i in range(SLOTS)
    ]
    hidden = fluid.layers.fc(fluid.layers.concat([*rows, dense], axis=1), 16, act="relu")
    logit = fluid.layers.fc(hidden, 1)
    return fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))


def click_batch(step: int, rows: int) -> dict[str, np.ndarray]:
    """Return a batch of `clicks`."""
    random = np.random.RandomState(step)
    slots = {f"slot_{i}": random.randint(0, IDS, (rows, 1)) for i in range(SLOTS)}
    dense = random.randn(rows, 4).astype("float32")
    return slots | {"dense": dense, "label": (dense.sum(1, keepdims=True) > 0).astype("float32")}


def deepfm(slots: int, ids: int, width: int) -> Any:
    """Build DeepFM on a table of ids that servers hold; returns its loss, without an optimizer."""
    label = fluid.data("label", [None, 1], "float32")
    rows = [
        fluid.layers.embedding(
            fluid.data(f"slot_{i}", [None, 1], "int64"),
            [ids, width + 1],
            is_sparse=True,
            is_distributed=True,
            param_attr=fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform(-0.1, 0.1)),
        )
        for i in range(slots)
    ]
    found = fluid.layers.stack(rows, axis=1)
    first = fluid.layers.reduce_sum(fluid.layers.slice(found, [2], [0], [1]), 1)
    factors = fluid.layers.slice(found, [2], [1], [width + 1])
    of_sum = fluid.layers.square(fluid.layers.reduce_sum(factors, 1))
    of_squares = fluid.layers.reduce_sum(fluid.layers.square(factors), 1)
    second = 0.5 * fluid.layers.reduce_sum(of_sum - of_squares, 1, keep_dim=True)
    hidden = fluid.layers.reshape(factors, [-1, slots * width])
    for _ in range(2):
        hidden = fluid.layers.fc(hidden, 400, act="relu")
    logit = first + second + fluid.layers.fc(hidden, 1)
    return fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))


def deepfm_batch(random: np.random.RandomState, slots: int, ids: int, rows: int) -> dict[str, np.ndarray]:
    """Return a batch of `deepfm`: few ids are frequent, most are rare."""
    drawn = random.zipf(1.2, (slots, rows, 1)).clip(max=ids - 1).astype("int64")
    return {f"slot_{i}": drawn[i] for i in range(slots)} | {"label": random.randint(0, 2, (rows, 1)).astype("float32")}


def part(batch: Mapping[str, np.ndarray], number: int, count: int) -> dict[str, np.ndarray]:
    """Return a trainer's share of the rows of a batch."""
    rows = len(next(iter(batch.values()))) // count
    return {n: v[number * rows : (number + 1) * rows] for n, v in batch.items()}
