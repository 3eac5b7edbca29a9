"""Pretraining of BERT (Devlin et al. 2019): words that are masked, and whether one sentence follows
another, with the mixed precision of `fluid.contrib.mixed_precision`.

    jfluid-launch examples/gallery/bert.yaml
    python -m jfluid examples/gallery/bert.py --steps 400
    python -m jfluid examples/gallery/bert.py --steps 400 --half 1

A sentence is about one topic, and the one that follows is about the same; another one is not. How
likely each word and each pair is, is known, and so is the least loss. Masked words are all shown as
[MASK], so that what is seen says nothing of them.

With --half 1 products of matrices are computed in half precision. Without it the program is decorated
as well, with dynamic loss scaling, but those operators are on the black list: the real Fluid has no
kernels for them in half precision on CPUs.
"""

import numpy as np
import paddle.fluid as fluid
from common import arguments, attention, dense, lengths, normed, parameter, report, train

TOPICS = 8
OWN_WORDS = 4  # of each topic
WORDS = TOPICS * OWN_WORDS
FROM_TOPIC = 0.75  # how likely a word is drawn from the topic only
PAD, CLASS, SEPARATOR, MASK = range(WORDS, WORDS + 4)
SENTENCE = 6  # its greatest length
LENGTH = 2 * SENTENCE + 3
MASKED = 2  # one word of each sentence
HEADS = 2
WIDTH = 32
LAYERS = 2


class Pairs:
    """[CLS] sentence [SEP] sentence [SEP], padded: a word of each sentence is masked."""

    def __init__(self, seed):
        self.seed = seed

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        topic, follows = draw.randint(0, TOPICS, size), draw.randint(0, 2, size)
        other = (topic + draw.randint(1, TOPICS, size)) % TOPICS
        batch = {
            "words": np.full((size, LENGTH), PAD),
            "sentence": np.zeros((size, LENGTH), int),
            "masked": np.zeros((size, MASKED), int),
            "missing": np.zeros((size, MASKED), int),
            "follows": follows.reshape(-1, 1),
        }
        batch["words"][:, 0] = CLASS
        starts = np.ones(size, int)
        for number, topics in enumerate((topic, np.where(follows, topic, other))):
            counts = lengths(draw, size, SENTENCE // 2, SENTENCE)
            masked = draw.randint(0, counts)
            for row, (start, count) in enumerate(zip(starts, counts)):
                words = draw.randint(0, WORDS, count)
                own = draw.uniform(size=count) < FROM_TOPIC
                words = np.where(own, topics[row] * OWN_WORDS + words % OWN_WORDS, words)
                batch["missing"][row, number] = words[masked[row]]
                words[masked[row]] = MASK
                batch["words"][row, start : start + count + 1] = np.append(words, SEPARATOR)
                batch["sentence"][row, start : start + count + 1] = number
            batch["masked"][:, number] = starts + masked
            starts = starts + counts + 1
        return {name: values.astype("int64") for name, values in batch.items()}

    @staticmethod
    def best_losses(batch):
        """By sample: of who knows all but the topics."""
        words = np.arange(WORDS)[:, None]
        of_topic = (1 - FROM_TOPIC) / WORDS + FROM_TOPIC / OWN_WORDS * (words // OWN_WORDS == np.arange(TOPICS))
        of_topic = np.vstack([of_topic, np.ones((4, TOPICS))])  # other tokens say nothing
        seen = of_topic[batch["words"]][..., None]  # by sample, place, topic
        first, second = (
            np.prod(np.where((batch["sentence"] == n)[..., None], seen[..., 0], 1), axis=1) for n in range(2)
        )
        joint = first[:, :, None] * second[:, None, :]
        same = np.eye(TOPICS, dtype=bool)
        joint = joint * np.where(same, 1.0, 1.0 / (TOPICS - 1))
        joint = joint / joint.sum((1, 2), keepdims=True)
        following = (joint * same).sum((1, 2))
        losses = -np.log(np.where(batch["follows"][:, 0], following, 1 - following))
        for number in range(MASKED):
            topics = joint.sum(2 - number)
            likely = (of_topic[batch["missing"][:, number]] * topics).sum(1)
            losses = losses - np.log(likely) / MASKED
        return losses


def encoder_layer(values, bias, name):
    heard = attention(values, values, bias, HEADS, name)
    values = normed(values + heard, name + "_heard_norm")
    inner = dense(values, 2 * WIDTH, name + "_inner", "gelu")
    return normed(values + dense(inner, WIDTH, name + "_outer"), name + "_outer_norm")


def embedded(ids, count, name):
    return fluid.embedding(ids, size=[count, WIDTH], param_attr=parameter(name, [count, WIDTH], 0.3))


def encoder(words, sentence):
    """[batch, LENGTH, WIDTH]"""
    places = fluid.layers.create_parameter([LENGTH, WIDTH], "float32", attr=parameter("places", [LENGTH, WIDTH], 0.3))
    values = embedded(words, WORDS + 4, "words_seen") + embedded(sentence, 2, "sentences")
    values = normed(fluid.layers.elementwise_add(values, places, axis=1), "seen_norm")
    padded = fluid.layers.equal(words, fluid.layers.fill_constant([1], "int64", PAD))
    padded = fluid.layers.cast(padded, "float32")
    bias = fluid.layers.unsqueeze(fluid.layers.scale(padded, -1e4), [1, 2])
    for number in range(LAYERS):
        values = encoder_layer(values, bias, "layer_%d" % number)
    return values


def bert():
    """(mean loss, losses by sample)."""
    words, sentence = (fluid.data(name, [None, LENGTH], dtype="int64") for name in ("words", "sentence"))
    masked, missing = (fluid.data(name, [None, MASKED], dtype="int64") for name in ("masked", "missing"))
    follows = fluid.data("follows", [None, 1], dtype="int64")
    values = encoder(words, sentence)

    chosen = fluid.layers.matmul(fluid.one_hot(masked, LENGTH), values)
    chosen = normed(dense(chosen, WIDTH, "chosen", "gelu"), "chosen_norm")
    table = fluid.default_main_program().global_block().var("words_seen")
    scores = fluid.layers.matmul(fluid.layers.reshape(chosen, [-1, WIDTH]), table, transpose_y=True)
    of_words = fluid.layers.softmax_with_cross_entropy(scores, fluid.layers.reshape(missing, [-1, 1]))
    of_words = fluid.layers.reduce_mean(fluid.layers.reshape(of_words, [-1, MASKED]), dim=1, keep_dim=True)
    first = fluid.layers.squeeze(fluid.layers.slice(values, [1], [0], [1]), [1])
    pooled = dense(first, WIDTH, "pooled", "tanh")
    of_pairs = fluid.layers.softmax_with_cross_entropy(dense(pooled, 2, "pairs"), follows)
    losses = of_words + of_pairs
    return fluid.layers.mean(losses), losses


def main():
    args = arguments(__doc__, steps=400, batch_size=96, learning_rate=0.002, worst_gap=0.25, half=0)
    pairs = Pairs(args.seed)
    loss, losses = bert()
    optimizer = fluid.optimizer.Adam(args.learning_rate)
    single = None if args.half else {"mul", "matmul"}
    optimizer = fluid.contrib.mixed_precision.decorate(
        optimizer,
        fluid.contrib.mixed_precision.AutoMixedPrecisionLists(custom_black_list=single),
        init_loss_scaling=128.0,
        use_dynamic_loss_scaling=True,
    )
    optimizer.minimize(loss)
    predicted = train(loss, losses, lambda step: pairs.batch(step, args.batch_size), args)

    found = np.mean([losses.mean() for _, losses in predicted])
    best = np.mean([pairs.best_losses(batch).mean() for batch, _ in predicted])
    report("loss of a pair of sentences", found, best, args.worst_gap)


if __name__ == "__main__":
    main()
