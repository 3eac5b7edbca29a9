"""Translation by a transformer (Vaswani et al. 2017), and sentences found by beam search.

    jfluid-launch examples/gallery/transformer.yaml
    python -m jfluid examples/gallery/transformer.py --steps 150

A sentence is of pairs of words, whose order the other language turns round. There, a sentence begins
with a word for its style. In the less likely style each word has one translation, in the likelier one
it has two, so the likeliest sentence as a whole is always of the less likely style: a search with a
beam finds it, but not with --beam 1. A model that knows the probabilities finds all.
"""

import numpy as np
import paddle.fluid as fluid
from common import arguments, attention, dense, lengths, normed, parameter, report, train

WORDS = 10
PAIRS = 3  # in the longest sentences
SOURCE = 2 * PAIRS
SOURCE_END = WORDS  # and all after it
PLAIN, RICH, START, END = range(2 * WORDS, 2 * WORDS + 4)
TARGET = 2 * PAIRS + 2  # a style, words, END
RICH_STYLE = 0.6  # how likely it is
HEADS = 2
WIDTH = 32


class Sentences:
    """Sentences of two languages, padded."""

    def __init__(self, seed):
        self.seed = seed

    def batch(self, step, size):
        draw = np.random.RandomState([self.seed, step])
        there = np.arange(SOURCE) < 2 * lengths(draw, size, 1, PAIRS)[:, None]
        source = np.where(there, draw.randint(0, WORDS, (size, SOURCE)), SOURCE_END)
        target = self.likeliest(source)
        rich = draw.uniform(size=(size, 1)) < RICH_STYLE
        other = rich & (target < WORDS) & (draw.uniform(size=target.shape) < 0.5)
        target = np.where(rich & (target == PLAIN), RICH, target + WORDS * other)
        given = np.insert(target[:, :-1], 0, START, axis=1)
        return {
            "source": source.astype("int64"),
            "given": given.astype("int64"),
            "following": target.astype("int64").reshape(size, TARGET, 1),
            "counts": (given != END).astype("float32").reshape(size, TARGET, 1),
        }

    @staticmethod
    def likeliest(source):
        turned = source.reshape(-1, PAIRS, 2)[:, :, ::-1].reshape(source.shape)
        words = np.where(turned == SOURCE_END, END, turned)
        return np.pad(words, ((0, 0), (1, 1)), "constant", constant_values=((0, 0), (PLAIN, END)))


def embedded(words, count, name):
    """With a vector for each place: [batch, places, WIDTH]."""
    vectors = fluid.embedding(words, size=[count, WIDTH], param_attr=parameter(name, [count, WIDTH], 0.5))
    shape = [words.shape[1], WIDTH]
    places = fluid.layers.create_parameter(shape, "float32", attr=parameter(name + "_places", shape, 0.5))
    return normed(fluid.layers.elementwise_add(vectors, places, axis=1), name + "_norm")


def sublayers(values, name):
    inner = dense(values, 2 * WIDTH, name + "_inner", "relu")
    return normed(values + dense(inner, WIDTH, name + "_outer"), name + "_outer_norm")


def encoder(source):
    """(vectors, [batch, SOURCE, WIDTH]; what is added to scores of attention to them)."""
    ended = fluid.layers.equal(source, fluid.layers.fill_constant([1], "int64", SOURCE_END))
    bias = fluid.layers.scale(fluid.layers.cast(ended, "float32"), -1e4)
    bias = fluid.layers.unsqueeze(bias, [1, 2])
    values = embedded(source, WORDS + 1, "source_words")
    heard = attention(values, values, bias, HEADS, "encoder")
    return sublayers(normed(values + heard, "encoder_norm"), "encoder"), bias


def decoder(given, encoded, encoded_bias):
    """Scores of the words that follow those given, [batch, TARGET, words]."""
    later = np.triu(np.full((TARGET, TARGET), -1e4, "float32"), 1)
    later = fluid.layers.unsqueeze(fluid.layers.assign(later), [0, 1])
    values = embedded(given, END + 1, "target_words")
    heard = attention(values, values, later, HEADS, "decoder")
    values = normed(values + heard, "decoder_norm")
    heard = attention(values, encoded, encoded_bias, HEADS, "across")
    values = sublayers(normed(values + heard, "across_norm"), "decoder")
    return dense(values, END + 1, "scores")


def trained():
    """(mean loss of a word, losses of all)."""
    source = fluid.data("source", [None, SOURCE], dtype="int64")
    given = fluid.data("given", [None, TARGET], dtype="int64")
    following = fluid.data("following", [None, TARGET, 1], dtype="int64")
    counts = fluid.data("counts", [None, TARGET, 1], dtype="float32")
    scores = decoder(given, *encoder(source))
    losses = fluid.layers.softmax_with_cross_entropy(scores, following) * counts
    return fluid.layers.reduce_sum(losses) / fluid.layers.reduce_sum(counts), losses


def beam_search(beam):
    """(ids, scores) of the sentences found: of each source `beam` of them, the likeliest first."""
    layers = fluid.layers
    source = fluid.data("source", [None, SOURCE], dtype="int64")
    start_ids = fluid.data("start_ids", [None, 1], dtype="int64", lod_level=2)
    start_scores = fluid.data("start_scores", [None, 1], dtype="float32", lod_level=2)
    parents = fluid.data("parents", [None], dtype="int32")  # of the hypotheses: rows before
    given = fluid.data("given", [None, TARGET], dtype="int64")
    encoded, bias = encoder(source)

    step, most = (layers.fill_constant([1], "int64", value) for value in (0, TARGET - 1))
    ids, scores = (layers.array_write(x, step) for x in (start_ids, start_scores))
    going = layers.less_than(step, most)
    loop = layers.While(going)
    with loop.block():
        before, score = layers.array_read(ids, step), layers.array_read(scores, step)
        kept = [layers.gather(x, parents) for x in (given, encoded, bias)]
        here = fluid.one_hot(step, TARGET)
        so_far = kept[0] + layers.cast(layers.cast(before, "float32") * here, "int64")
        of_words = decoder(so_far, kept[1], kept[2])
        of_words = layers.reduce_sum(of_words * layers.unsqueeze(here, [2]), dim=1)
        likely, words = layers.topk(layers.softmax(of_words), beam)
        sums = layers.elementwise_add(layers.log(likely), score, axis=0)
        found, found_scores, rows = layers.beam_search(
            before,
            score,
            words,
            layers.lod_reset(sums, before),
            beam,
            END,
            return_parent_idx=True,
        )
        layers.increment(step)
        layers.array_write(found, step, array=ids)
        layers.array_write(found_scores, step, array=scores)
        for new, old in zip([rows, so_far] + kept[1:], [parents, given, encoded, bias]):
            layers.assign(new, old)
        going_on = layers.logical_not(layers.is_empty(found))
        layers.logical_and(layers.less_than(step, most), going_on, out=going)
    return layers.beam_search_decode(ids, scores, beam, END)


def translated(source, beam):
    """The likeliest translations that a beam search finds, [batch, TARGET]."""
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        sentences = beam_search(beam)
    place, size = fluid.CPUPlace(), len(source)
    each = [[1] * size, [1] * size]
    feed = {
        "source": source,
        "given": np.zeros((size, TARGET), "int64"),
        "parents": np.arange(size, dtype="int32"),
        "start_ids": fluid.create_lod_tensor(np.full((size, 1), START, "int64"), each, place),
        "start_scores": fluid.create_lod_tensor(np.zeros((size, 1), "float32"), each, place),
    }
    ids, _ = fluid.Executor(place).run(program, feed=feed, fetch_list=list(sentences), return_numpy=False)
    by_source, by_sentence = ids.lod()
    words = np.array(ids)
    found = np.full((size, TARGET), END)
    for row, first in enumerate(by_source[:-1]):
        sentence = words[by_sentence[first] + 1 : by_sentence[first + 1]]  # without START
        found[row, : len(sentence)] = sentence
    return found


def main():
    args = arguments(__doc__, steps=150, batch_size=96, learning_rate=0.005, beam=4, worst_gap=0.05)
    sentences = Sentences(args.seed)
    loss, losses = trained()
    fluid.optimizer.Adam(args.learning_rate).minimize(loss)
    predicted = train(loss, losses, lambda step: sentences.batch(step, args.batch_size), args)

    source = predicted[-1][0]["source"]
    found = translated(source, args.beam)
    right = (found == sentences.likeliest(source)).all(1)
    report("likeliest sentences found", right.mean(), 1, args.worst_gap)


if __name__ == "__main__":
    main()
