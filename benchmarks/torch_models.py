"""The same models in PyTorch 2, for users who did not choose Fluid: what `limit.py` measures beside
jfluid. They read the batches of fluid_models.
"""

import fluid_models
import torch
from fakes import batches_without_an_engine, joined_slots, padded_words
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 10))

    def forward(self, x, label):
        return functional.cross_entropy(self.layers(x), label)


class MnistConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(20),
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(800, 10),
        )

    def forward(self, img, label):
        return functional.cross_entropy(self.body(img), label)


def _unit(inside, channels, kernel, stride=1):
    convolution = nn.Conv2d(inside, channels, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels))


class _Residual(nn.Module):
    def __init__(self, inside, channels, stride):
        super().__init__()
        self.one, self.two = _unit(inside, channels, 3, stride), _unit(channels, channels, 3)
        self.short = nn.Identity() if inside == channels else _unit(inside, channels, 1, stride)

    def forward(self, x):
        return torch.relu(self.two(torch.relu(self.one(x))) + self.short(x))


class ResnetCifar(nn.Module):
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


class TransformerEncoder(nn.Module):
    def __init__(self, d=256, heads=4, layers=4, vocab=8000):
        super().__init__()
        self.table, self.heads = nn.Embedding(vocab, d), heads
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {n: nn.Linear(d, d) for n in "qkvp"}
                | {"f": nn.Linear(d, 4 * d), "g": nn.Linear(4 * d, d)}
                | {"one": nn.LayerNorm(d), "two": nn.LayerNorm(d)}
            )
            for _ in range(layers)
        )
        self.out = nn.Linear(d, vocab)

    def forward(self, x, y):
        h = self.table(x[..., 0])
        batch, seq, d = h.shape
        for layer in self.layers:
            q, k, v = (layer[n](h).view(batch, seq, self.heads, d // self.heads).transpose(1, 2) for n in "qkv")
            weights = torch.softmax(q @ k.transpose(2, 3) * (d // self.heads) ** -0.5, -1)
            weights = functional.dropout(weights, 0.1)
            o = (weights @ v).transpose(1, 2).reshape(batch, seq, d)
            h = layer["one"](h + layer["p"](o))
            h = layer["two"](h + layer["g"](torch.relu(layer["f"](h))))
        return functional.cross_entropy(self.out(h).view(batch * seq, -1), y)


class StackedLstm(nn.Module):
    """Each LSTM multiplies its input, which Fluid's `dynamic_lstm` leaves to the layer before: one
    product of 128 x 128 more.
    """

    def __init__(self, width=128, vocab=5000, stacked=3):
        super().__init__()
        hidden = width // 4
        self.table = nn.Embedding(vocab, width, sparse=True)
        self.fc = nn.Linear(width, width)
        self.lstms = nn.ModuleList(nn.LSTM(width, hidden, batch_first=True) for _ in range(stacked))
        self.mixes = nn.ModuleList(nn.Linear(width + hidden, width) for _ in range(stacked - 1))
        self.out = nn.Linear(width + hidden, 2)

    def _lstm(self, i, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstms[i](packed)[0], True, total_length=x.shape[1])[0]

    def forward(self, words, lengths, backwards, label):
        fc = self.fc(self.table(words))
        h = self._lstm(0, fc, lengths)
        turn = backwards.unsqueeze(2)
        for i, mix in enumerate(self.mixes):
            fc = mix(torch.cat([fc, h], 2))
            given = fc.gather(1, turn.expand(-1, -1, fc.shape[2])) if i == 0 else fc
            h = self._lstm(i + 1, given, lengths)
            h = h.gather(1, turn.expand(-1, -1, h.shape[2])) if i == 0 else h
        both = torch.cat([fc, h], 2)
        there = torch.arange(both.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
        pooled = both.masked_fill(~there.unsqueeze(2), -1e9).amax(1)
        return functional.cross_entropy(self.out(pooled), label)


class CtrDnn(nn.Module):
    """The table's gradient is sparse, as in the Fluid program."""

    def __init__(self, slots=26, vocab=1000001, width=10):
        super().__init__()
        self.table = nn.Embedding(vocab, width, sparse=True)
        sizes = [slots * width + 13, 400, 400, 400]
        pairs = [(nn.Linear(a, b), nn.ReLU()) for a, b in zip(sizes, sizes[1:])]
        self.layers = nn.Sequential(*(layer for pair in pairs for layer in pair), nn.Linear(400, 2))

    def forward(self, ids, dense, label):
        x = torch.cat([self.table(ids).flatten(1), dense], 1)
        return functional.cross_entropy(self.layers(x), label)


def _lazy_adam(model):
    """Sparse Adam of the table, Adam of the rest."""
    rest = [p for n, p in model.named_parameters() if not n.startswith("table")]
    return [torch.optim.SparseAdam(model.table.parameters(), 1e-3), torch.optim.Adam(rest, 1e-3)]


def _sgd(model):
    return [torch.optim.SGD(model.parameters(), 0.01)]


def _adam(model):
    return [torch.optim.Adam(model.parameters(), 1e-3)]


def _adagrad(model):
    return [torch.optim.Adagrad(model.parameters(), 0.01)]


def _momentum(model):
    return [torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)]


MODELS = {
    "mlp": (Mlp, _sgd),
    "mnist_conv": (MnistConv, _adam),
    "resnet_cifar": (ResnetCifar, _momentum),
    "transformer_encoder": (TransformerEncoder, _adam),
    "stacked_lstm": (StackedLstm, _adagrad),
    "ctr_dnn": (CtrDnn, _sgd),
    "ctr_dnn_lazy_adam": (CtrDnn, _lazy_adam),
}


def tensors(feed):
    """A batch as these models take it."""
    arrays = padded_words(feed) if "words" in feed else joined_slots(feed)
    found = [torch.from_numpy(a) for a in arrays]
    return [*found[:-1], found[-1].flatten()]  # labels


def trainer(name, compiled=False):
    """A function that runs one step on a batch and returns the loss."""
    make, optimizers = MODELS[name]
    torch.manual_seed(0)
    model = make()
    chosen = optimizers(model)
    loss = torch.compile(model) if compiled else model

    def run(batch):
        for optimizer in chosen:
            optimizer.zero_grad()
        value = loss(*batch)
        value.backward()
        for optimizer in chosen:
            optimizer.step()
        return float(value)

    return run


PREPARE = dict.fromkeys(MODELS, tensors)


def batches(name):
    """What makes batches of a model."""
    return batches_without_an_engine(fluid_models.MODELS[name])
