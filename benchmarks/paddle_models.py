"""The same models in Paddle 3, for users who moved on from Fluid: what `limit.py` measures beside
jfluid. They read the batches of fluid_models.
"""

import fluid_models
import numpy as np
import paddle
from fakes import batches_without_an_engine, joined_slots, padded_words
from paddle import nn
from paddle.nn import functional


class Mlp(nn.Layer):
    def __init__(self):
        super().__init__()
        sizes, layers = (784, 200, 200), []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.Tanh()]
        self.layers = nn.Sequential(*layers, nn.Linear(200, 10))

    def forward(self, x, label):
        return functional.cross_entropy(self.layers(x), label)


class MnistConv(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2D(1, 20, 5),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.BatchNorm2D(20),
            nn.Conv2D(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Flatten(),
            nn.Linear(800, 10),
        )

    def forward(self, img, label):
        return functional.cross_entropy(self.body(img), label)


def _unit(inside, channels, kernel, stride=1):
    convolution = nn.Conv2D(inside, channels, kernel, stride, kernel // 2, bias_attr=False)
    return nn.Sequential(convolution, nn.BatchNorm2D(channels))


class _Residual(nn.Layer):
    def __init__(self, inside, channels, stride):
        super().__init__()
        self.one, self.two = _unit(inside, channels, 3, stride), _unit(channels, channels, 3)
        self.short = nn.Identity() if inside == channels else _unit(inside, channels, 1, stride)

    def forward(self, x):
        return functional.relu(self.two(functional.relu(self.one(x))) + self.short(x))


class ResnetCifar(nn.Layer):
    def __init__(self, blocks=3):
        super().__init__()
        layers, inside = [_unit(3, 16, 3), nn.ReLU()], 16
        for channels, first in ((16, 1), (32, 2), (64, 2)):
            for i in range(blocks):
                layers.append(_Residual(inside, channels, 1 if i else first))
                inside = channels
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(64, 10)

    def forward(self, img, label):
        return functional.cross_entropy(self.out(self.body(img).mean((2, 3))), label)


class _EncoderLayer(nn.Layer):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.p = (nn.Linear(d, d) for _ in range(4))
        self.f, self.g = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.one, self.two = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, h):
        batch, seq, d = h.shape
        q, k, v = (
            each(h).reshape([batch, seq, self.heads, d // self.heads]).transpose([0, 2, 1, 3])
            for each in (self.q, self.k, self.v)
        )
        weights = paddle.matmul(q, k, transpose_y=True) * (d // self.heads) ** -0.5
        weights = functional.dropout(functional.softmax(weights), 0.1)
        o = paddle.matmul(weights, v).transpose([0, 2, 1, 3]).reshape([batch, seq, d])
        h = self.one(h + self.p(o))
        return self.two(h + self.g(functional.relu(self.f(h))))


class TransformerEncoder(nn.Layer):
    def __init__(self, d=256, heads=4, layers=4, vocab=8000):
        super().__init__()
        self.table = nn.Embedding(vocab, d)
        self.layers = nn.Sequential(*[_EncoderLayer(d, heads) for _ in range(layers)])
        self.out = nn.Linear(d, vocab)

    def forward(self, x, y):
        logits = self.out(self.layers(self.table(x[:, :, 0])))
        return functional.cross_entropy(logits.flatten(0, 1), y)


def _turned(x, places):
    return paddle.take_along_axis(x, places[:, :, : x.shape[2]], 1)


class StackedLstm(nn.Layer):
    """Each LSTM multiplies its input, which Fluid's `dynamic_lstm` leaves to the layer before: one
    product of 128 x 128 more.
    """

    def __init__(self, width=128, vocab=5000, stacked=3):
        super().__init__()
        hidden = width // 4
        self.table = nn.Embedding(vocab, width, sparse=True)
        self.fc = nn.Linear(width, width)
        self.lstms = nn.LayerList([nn.LSTM(width, hidden) for _ in range(stacked)])
        self.mixes = nn.LayerList([nn.Linear(width + hidden, width) for _ in range(stacked - 1)])
        self.out = nn.Linear(width + hidden, 2)

    def forward(self, words, lengths, backwards, label):
        fc = self.fc(self.table(words))
        h, _ = self.lstms[0](fc, sequence_length=lengths)
        for i, mix in enumerate(self.mixes):
            fc = mix(paddle.concat([fc, h], 2))
            given = _turned(fc, backwards) if i == 0 else fc
            h, _ = self.lstms[i + 1](given, sequence_length=lengths)
            h = _turned(h, backwards) if i == 0 else h
        both = paddle.concat([fc, h], 2)
        there = paddle.arange(both.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
        pooled = paddle.where(there.unsqueeze(2), both, paddle.full_like(both, -1e9)).max(1)
        return functional.cross_entropy(self.out(pooled), label)


class CtrDnn(nn.Layer):
    """The table's gradient is sparse, as in the Fluid program."""

    def __init__(self, slots=26, vocab=1000001, width=10):
        super().__init__()
        self.table = nn.Embedding(vocab, width, sparse=True)
        sizes, layers = [slots * width + 13, 400, 400, 400], []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(400, 2))

    def forward(self, ids, dense, label):
        x = paddle.concat([self.table(ids).flatten(1), dense], 1)
        return functional.cross_entropy(self.layers(x), label)


def _sgd(model):
    return paddle.optimizer.SGD(0.01, parameters=model.parameters())


def _adam(model):
    return paddle.optimizer.Adam(1e-3, parameters=model.parameters(), lazy_mode=True)


def _momentum(model):
    return paddle.optimizer.Momentum(0.01, 0.9, parameters=model.parameters())


def _adagrad(model):
    return paddle.optimizer.Adagrad(0.01, parameters=model.parameters())


MODELS = {
    "mlp": (Mlp, _sgd),
    "mnist_conv": (MnistConv, _adam),
    "resnet_cifar": (ResnetCifar, _momentum),
    "transformer_encoder": (TransformerEncoder, _adam),
    "stacked_lstm": (StackedLstm, _adagrad),
    "ctr_dnn": (CtrDnn, _sgd),
    "ctr_dnn_lazy_adam": (CtrDnn, _adam),
}


def tensors(feed):
    """A batch as these models take it."""
    if "words" in feed:
        words, lengths, backwards, label = padded_words(feed)
        arrays = [words, lengths, np.repeat(backwards[:, :, None], 128, 2), label]
    else:
        arrays = joined_slots(feed)
    found = [paddle.to_tensor(a) for a in arrays]
    return [*found[:-1], found[-1].flatten()]  # labels


def trainer(name, compiled=False):
    """A function that runs one step on a batch and returns the loss. `compiled`: as a program of
    Paddle's `to_static`.
    """
    make, optimizer = MODELS[name]
    paddle.seed(0)
    model = make()
    chosen = optimizer(model)
    loss = paddle.jit.to_static(model, backend=None) if compiled else model

    def run(batch):
        value = loss(*batch)
        value.backward()
        chosen.step()
        chosen.clear_grad()
        return float(value)

    return run


PREPARE = dict.fromkeys(MODELS, tensors)


def batches(name):
    """What makes batches of a model."""
    return batches_without_an_engine(fluid_models.MODELS[name])
