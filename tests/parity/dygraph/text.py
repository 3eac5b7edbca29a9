"""Language models, translation, fine-tuning, and vectors of words."""

import numpy as np

from tests.parity.dygraph.engine import (
    Case,
    dygraph,
    fluid,
    integers,
    layers,
    minimized,
    variables,
)

WORDS = 20


class LanguageModel(dygraph.Layer):
    """An LSTM of two layers, unrolled in Python (Zaremba et al. 2014)."""

    def __init__(self, width=6):
        super(LanguageModel, self).__init__()
        self.width = width
        self.words = dygraph.Embedding(size=[WORDS, width])
        self.gates = dygraph.LayerList([dygraph.Linear(2 * width, 4 * width) for _ in range(2)])
        self.out = self.create_parameter(shape=[width, WORDS])

    def forward(self, given, following, hidden, cell):
        seen = self.words(given)
        hidden, cell = layers.unstack(hidden), layers.unstack(cell)
        outputs = []
        for place in range(4):
            value = seen[:, place]
            for number in range(2):
                gates = self.gates[number](layers.concat([value, hidden[number]], axis=1))
                enter, forget, out, new = layers.split(gates, 4, dim=1)
                kept = cell[number] * layers.sigmoid(forget + 1.0)
                cell[number] = kept + layers.sigmoid(enter) * layers.tanh(new)
                value = layers.tanh(cell[number]) * layers.sigmoid(out)
                hidden[number] = value
            outputs.append(value)
        scores = layers.matmul(layers.stack(outputs, axis=1), self.out)
        losses = layers.softmax_with_cross_entropy(scores, following)
        loss = layers.reduce_sum(layers.reduce_mean(losses, dim=[0]))
        return loss, layers.stack(hidden), layers.stack(cell)


def language_model(of):
    net = of(LanguageModel)()
    sgd = fluid.optimizer.SGD(
        learning_rate=dygraph.ExponentialDecay(1.0, decay_steps=4, decay_rate=0.8),
        parameter_list=net.parameters(),
        grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5),
    )

    def step(r):
        """Two stretches of a text: the second begins with the state that the first ends with."""
        hidden, cell = variables(*np.zeros((2, 2, 5, net.width), "float32"))
        found, text = [], integers(r, WORDS, 5, 9)
        for at in (0, 4):
            given, following = variables(text[:, at : at + 4], text[:, at + 1 : at + 5, None])
            loss, hidden, cell = net(given, following, hidden.detach(), cell.detach())
            found.append(minimized(loss, sgd))
        return found

    return Case({"net": net}, {"net": sgd}, step)


class Attention(dygraph.Layer):
    def __init__(self, width, heads):
        super(Attention, self).__init__()
        self.width, self.heads = width, heads
        self.query = dygraph.Linear(width, width)
        self.key = dygraph.Linear(width, width, bias_attr=False)  # it would change nothing
        self.value = dygraph.Linear(width, width)
        self.out = dygraph.Linear(width, width)

    def apart(self, values):
        size = self.width // self.heads
        values = layers.reshape(values, [0, 0, self.heads, size])
        return layers.transpose(values, [0, 2, 1, 3])

    def forward(self, asking, told, bias):
        query, key = self.apart(self.query(asking)), self.apart(self.key(told))
        size = self.width // self.heads
        scores = layers.matmul(query, key, transpose_y=True, alpha=size**-0.5) + bias
        heard = layers.matmul(layers.softmax(scores), self.apart(self.value(told)))
        heard = layers.reshape(layers.transpose(heard, [0, 2, 1, 3]), [0, 0, self.width])
        return self.out(heard)


class Sublayers(dygraph.Layer):
    """Attention to itself, maybe to others, and a network for each place."""

    def __init__(self, width, heads=2, across=False, act="relu"):
        super(Sublayers, self).__init__()
        self.itself, self.norm = Attention(width, heads), dygraph.LayerNorm(width)
        self.across = Attention(width, heads) if across else None
        self.across_norm = dygraph.LayerNorm(width) if across else None
        self.inner = dygraph.Linear(width, 2 * width, act=act)
        self.outer, self.last_norm = dygraph.Linear(2 * width, width), dygraph.LayerNorm(width)

    def forward(self, values, bias, told=None, told_bias=None):
        values = self.norm(values + self.itself(values, values, bias))
        if self.across is not None:
            values = self.across_norm(values + self.across(values, told, told_bias))
        return self.last_norm(values + self.outer(self.inner(values)))


class Transformer(dygraph.Layer):
    """Encoder and decoder of one layer each (Vaswani et al. 2017)."""

    def __init__(self, width=8, places=5):
        super(Transformer, self).__init__()
        self.width = width
        self.source = dygraph.Embedding(size=[WORDS, width])
        self.target = dygraph.Embedding(size=[WORDS, width])
        self.places = self.create_parameter(shape=[places, width])
        self.encoder = Sublayers(width)
        self.decoder = Sublayers(width, across=True)
        self.out = dygraph.Linear(width, WORDS, bias_attr=False)

    def forward(self, source, given, following, source_bias, later):
        told = layers.scale(self.source(source), scale=self.width**0.5) + self.places
        told = self.encoder(told, source_bias)
        values = layers.scale(self.target(given), scale=self.width**0.5) + self.places
        scores = self.out(self.decoder(values, later, told, source_bias))
        wanted = layers.label_smooth(layers.one_hot(following, depth=WORDS), epsilon=0.1)
        losses = layers.softmax_with_cross_entropy(layers.reshape(scores, [-1, WORDS]), wanted, soft_label=True)
        return layers.reduce_mean(losses)


def transformer(of):
    net = of(Transformer)()
    adam = fluid.optimizer.Adam(
        learning_rate=dygraph.NoamDecay(8, 5, learning_rate=0.5),
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-9,
        parameter_list=net.parameters(),
    )
    later = np.triu(np.full((1, 1, 5, 5), -1e4, "float32"), 1)

    def step(r):
        source, given, following = (integers(r, WORDS, 4, 5) for _ in range(3))
        bias = np.where(np.arange(5) < r.randint(2, 6, (4, 1)), 0, -1e4)
        bias = bias.astype("float32").reshape(4, 1, 1, 5)
        loss = net(*variables(source, given, following.reshape(-1, 1), bias, later))
        return [minimized(loss, adam)]

    return Case({"net": net}, {"net": adam}, step)


class Classifier(dygraph.Layer):
    """An encoder as BERT's with a class of its first place (Devlin et al. 2018)."""

    def __init__(self, width=8, places=5):
        super(Classifier, self).__init__()
        self.words = dygraph.Embedding(size=[WORDS, width])
        self.places = dygraph.Embedding(size=[places, width])
        self.sentences = dygraph.Embedding(size=[2, width], param_attr=fluid.ParamAttr(trainable=False))
        self.norm = dygraph.LayerNorm(width)
        self.encoder = dygraph.LayerList([Sublayers(width, act="gelu") for _ in range(2)])
        self.pooled = dygraph.Linear(width, width, act="tanh")
        self.out = dygraph.Linear(width, 3)

    def forward(self, words, places, sentences, bias, labels):
        values = self.words(words) + self.places(places) + self.sentences(sentences)
        values = self.norm(values)
        for sublayers in self.encoder:
            values = sublayers(values, bias)
        scores = self.out(self.pooled(values[:, 0]))
        loss, chances = layers.softmax_with_cross_entropy(scores, labels, return_softmax=True)
        return layers.mean(loss), layers.accuracy(chances, labels)


def bert(of):
    net = of(Classifier)()
    rate = dygraph.PolynomialDecay(0.01, decay_steps=20, end_learning_rate=0.0)
    adam = fluid.optimizer.Adam(
        learning_rate=dygraph.LinearLrWarmup(rate, warmup_steps=4, start_lr=0.0, end_lr=0.01),
        parameter_list=net.parameters(),
        regularization=fluid.regularizer.L2Decay(0.01),
        grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0),
    )

    def step(r):
        words, sentences, labels = (
            integers(r, below, *shape) for below, shape in ((WORDS, (4, 5)), (2, (4, 5)), (3, (4, 1)))
        )
        bias = np.where(np.arange(5) < r.randint(2, 6, (4, 1)), 0, -1e4)
        bias = bias.astype("float32").reshape(4, 1, 1, 5)
        places = np.tile(np.arange(5, dtype="int64"), (4, 1))
        loss, accuracy = net(*variables(words, places, sentences, bias, labels))
        return [minimized(loss, adam), accuracy]

    return Case({"net": net}, {"net": adam}, step)


class SkipGram(dygraph.Layer):
    """Vectors of words, whose gradients are rows (Mikolov et al. 2013)."""

    def __init__(self, width=6):
        super(SkipGram, self).__init__()
        self.width = width
        self.given = dygraph.Embedding(size=[WORDS, width], is_sparse=True)
        self.near = dygraph.Embedding(size=[WORDS, width], is_sparse=True)

    def forward(self, words, near, truth):
        words = layers.reshape(self.given(words), [-1, 1, self.width])
        scores = layers.reduce_sum(words * self.near(near), dim=2)
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(scores, truth))


def word2vec(of):
    net = of(SkipGram)()
    adam = fluid.optimizer.Adam(0.05, parameter_list=net.parameters(), lazy_mode=True)
    truth = np.zeros((6, 4), "float32")
    truth[:, 0] = 1.0

    def step(r):
        """Few of the words, so that rows stay as they are, and some twice."""
        words, near = integers(r, 8, 6, 1), integers(r, 12, 6, 4)
        return [minimized(net(*variables(words, near, truth)), adam)]

    return Case({"net": net}, {"net": adam}, step)


PROGRAMS = (language_model, transformer, bert, word2vec)
