"""Image classification by a small residual network (He et al. 2016), with layer-wise learning rates
(LARS, You et al. 2017) and smoothed labels (Szegedy et al. 2016).

    jfluid-launch examples/gallery/resnet.yaml
    python -m jfluid examples/gallery/resnet.py --steps 400

An image is noise with one of a few glyphs somewhere in it. The best rule is known: the odds of each
glyph, summed over all places where it may be.
"""

import numpy as np
import paddle.fluid as fluid
from common import arguments, parameter, report, train

CLASSES = 4
SIDE = 8  # of an image
GLYPH = 5  # its side
NOISE = 1.0  # standard deviation of a pixel
WIDTH = 8  # channels of the first block


class Images:
    """Images of one channel, and the numbers of the glyphs in them."""

    def __init__(self, seed):
        draw = np.random.RandomState(seed)
        self.glyphs = draw.choice([-1.0, 1.0], (CLASSES, GLYPH, GLYPH))
        self.seed = seed

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        images = draw.normal(0, NOISE, (size, 1, SIDE, SIDE))
        labels = draw.randint(0, CLASSES, size)
        corners = draw.randint(0, SIDE - GLYPH + 1, (size, 2))
        for image, label, (top, left) in zip(images, labels, corners):
            image[0, top : top + GLYPH, left : left + GLYPH] += self.glyphs[label]
        return {
            "image": images.astype("float32"),
            "label": labels.astype("int64").reshape(-1, 1),
        }

    def best_labels(self, images):
        """The likeliest glyph of each image; all glyphs have the same sum of squares."""
        places = range(SIDE - GLYPH + 1)
        windows = np.stack([images[:, 0, y : y + GLYPH, x : x + GLYPH] for y in places for x in places], axis=1)
        agreement = np.einsum("npyx,cyx->npc", windows, self.glyphs) / NOISE**2
        return np.logaddexp.reduce(agreement, axis=1).argmax(1)


def convolved(image, channels, size, name, stride=1, act=None):
    """A convolution and batch normalization."""
    fan_in = image.shape[1] * size**2
    found = fluid.layers.conv2d(
        image,
        channels,
        size,
        stride=stride,
        padding=size // 2,
        param_attr=parameter(name, [channels, image.shape[1], size, size], (6.0 / fan_in) ** 0.5),
        bias_attr=False,
    )
    return fluid.layers.batch_norm(found, act=act)


def block(image, channels, stride, name):
    """Two convolutions whose result is added to what goes in."""
    inner = convolved(image, channels, 3, name + "_0", stride, "relu")
    inner = convolved(inner, channels, 3, name + "_1")
    if stride != 1:
        image = convolved(image, channels, 1, name + "_short", stride)
    return fluid.layers.elementwise_add(image, inner, act="relu")


def resnet():
    """(mean loss, scores of the classes)."""
    image = fluid.data("image", [None, 1, SIDE, SIDE], dtype="float32")
    label = fluid.data("label", [None, 1], dtype="int64")
    found = convolved(image, WIDTH, 3, "stem", act="relu")
    for number, (channels, stride) in enumerate(((WIDTH, 1), (2 * WIDTH, 2))):
        found = block(found, channels, stride, "block_%d" % number)
    pooled = fluid.layers.pool2d(found, pool_type="avg", global_pooling=True)
    scores = fluid.layers.fc(pooled, CLASSES, param_attr=parameter("out", [2 * WIDTH, CLASSES], 0.3))
    smooth = fluid.layers.label_smooth(fluid.one_hot(label, CLASSES), epsilon=0.1)
    smooth = fluid.layers.reshape(smooth, [-1, CLASSES])
    loss = fluid.layers.softmax_with_cross_entropy(scores, smooth, soft_label=True)
    return fluid.layers.mean(loss), scores


def main():
    args = arguments(
        __doc__,
        steps=400,
        batch_size=64,
        learning_rate=2.0,
        warmup_steps=60,
        decay_steps=120,
        worst_gap=0.05,
    )
    images = Images(args.seed)
    loss, scores = resnet()
    rate = fluid.layers.natural_exp_decay(args.learning_rate, args.decay_steps, 1.0)
    rate = fluid.layers.linear_lr_warmup(rate, args.warmup_steps, 0.0, args.learning_rate)
    fluid.optimizer.LarsMomentum(rate, momentum=0.9, lars_coeff=0.02).minimize(loss)
    predicted = train(loss, scores, lambda step: images.batch(step, args.batch_size), args)

    truth = np.concatenate([batch["label"] for batch, _ in predicted])[:, 0]
    found = np.concatenate([scores for _, scores in predicted]).argmax(1)
    best = np.concatenate([images.best_labels(batch["image"]) for batch, _ in predicted])
    report("right classes", np.mean(found == truth), np.mean(best == truth), args.worst_gap)


if __name__ == "__main__":
    main()
