"""Numbers of proposals of whole levels of a pyramid, for any engine that offers the Fluid API (Python 3.7 syntax).

Scores of a level are distinct, or constant in a part of the level as in a padded image.
"""

import numpy as np

ANCHORS = 3
SIZES = (13, 25)
MAPS = 8


def _maps(number, padded):
    """Return the scores and deltas of a level."""
    random, size = np.random.RandomState(number), SIZES[number % 2]
    count = ANCHORS * size * size
    scores = (random.permutation(count).reshape(1, ANCHORS, size, size).astype("float32") + 1) / np.float32(2048)
    deltas = (random.randn(1, 4 * ANCHORS, size, size) * 0.2).astype("float32")
    if padded:
        scores[:, :, 6:], deltas[:, :, 7:] = scores[:, :, 6:7, :1], deltas[:, :, 7:8, :1]
    return scores, deltas, size


def proposals(fluid, padded):
    """Return, for each level, the number of proposals and the sum of their coordinates."""
    layers, main = fluid.layers, fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        scores = fluid.data("scores", [1, ANCHORS, None, None])
        deltas = fluid.data("deltas", [1, 4 * ANCHORS, None, None])
        image = fluid.data("image", [1, 3])
        features = fluid.data("features", [1, 4, None, None])
        anchors, variances = layers.anchor_generator(
            features, [32.0], [0.5, 1.0, 2.0], variance=[1.0, 1.0, 1.0, 1.0], stride=[8.0, 8.0]
        )
        boxes, _ = layers.generate_proposals(
            scores, deltas, image, anchors, variances, 2000, 1000, nms_thresh=0.7, min_size=0.0
        )
    executor, found = fluid.Executor(fluid.CPUPlace()), []
    for number in range(MAPS):
        values, moved, size = _maps(number, padded)
        feed = {
            "scores": values,
            "deltas": moved,
            "image": np.array([[8 * size, 8 * size, 1]], "float32"),
            "features": np.zeros((1, 4, size, size), "float32"),
        }
        kept = np.array(executor.run(main, feed=feed, fetch_list=[boxes], return_numpy=False)[0])
        found.append([len(kept), float(kept.astype("float64").sum())])
    return found
