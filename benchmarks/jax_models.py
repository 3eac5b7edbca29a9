"""The same models in hand-written JAX: what the compiled programs are held against.

Each builder returns (parameters, loss(parameters, *batch), optimizer) and reads the batches of
fluid_models.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class _Weights:
    """Small normal weights, one key after the other."""

    def __init__(self):
        self.key = jax.random.key(0)

    def __call__(self, *shape):
        self.key, key = jax.random.split(self.key)
        return jax.random.normal(key, shape, jnp.float32) * 0.05


def _cross_entropy(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels, 1))


def sgd(rate):
    return (lambda p: ()), lambda p, g, s: (jax.tree.map(lambda p, g: p - rate * g, p, g), s)


def adagrad(rate, eps=1e-6):
    def update(p, g, s):
        s = jax.tree.map(lambda m, g: m + g * g, s, g)
        return jax.tree.map(lambda p, g, m: p - rate * g / (jnp.sqrt(m) + eps), p, g, s), s

    return (lambda p: jax.tree.map(jnp.zeros_like, p)), update


def momentum(rate, mu=0.9):
    def update(p, g, s):
        s = jax.tree.map(lambda v, g: mu * v + g, s, g)
        return jax.tree.map(lambda p, v: p - rate * v, p, s), s

    return (lambda p: jax.tree.map(jnp.zeros_like, p)), update


def adam(rate, b1=0.9, b2=0.999, eps=1e-8):
    def init(p):
        return (
            jax.tree.map(jnp.zeros_like, p),
            jax.tree.map(jnp.zeros_like, p),
            jnp.zeros((), jnp.float32),
        )

    def update(p, g, s):
        m, v, t = s[0], s[1], s[2] + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, g)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, g)
        scale = rate * jnp.sqrt(1 - b2**t) / (1 - b1**t)
        return jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + eps), p, m, v), (m, v, t)

    return init, update


def _conv(x, w, stride=1, padding="SAME"):
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=("NCHW", "OIHW", "NCHW"))


def _max_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _batch_norm(x, g, b):
    m, v = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    return (x - m) * lax.rsqrt(v + 1e-5) * g[:, None, None] + b[:, None, None]


def mlp():
    w = _Weights()
    p = [(w(784, 200), jnp.zeros(200)), (w(200, 200), jnp.zeros(200)), (w(200, 10), jnp.zeros(10))]

    def loss(p, x, label):
        for kernel, bias in p[:-1]:
            x = jnp.tanh(x @ kernel + bias)
        return _cross_entropy(x @ p[-1][0] + p[-1][1], label)

    return p, loss, sgd(0.01)


def mnist_conv():
    w = _Weights()
    p = {
        "w1": w(20, 1, 5, 5),
        "b1": jnp.zeros(20),
        "g": jnp.ones(20),
        "b": jnp.zeros(20),
        "w2": w(50, 20, 5, 5),
        "b2": jnp.zeros(50),
        "w3": w(800, 10),
        "b3": jnp.zeros(10),
    }

    def loss(p, img, label):
        x = _max_pool(jax.nn.relu(_conv(img, p["w1"], 1, "VALID") + p["b1"][:, None, None]))
        x = _batch_norm(x, p["g"], p["b"])
        x = _max_pool(jax.nn.relu(_conv(x, p["w2"], 1, "VALID") + p["b2"][:, None, None]))
        return _cross_entropy(x.reshape(x.shape[0], -1) @ p["w3"] + p["b3"], label)

    return p, loss, adam(1e-3)


def resnet_cifar(blocks=3):
    w = _Weights()

    def unit(inside, channels, kernel):
        return w(channels, inside, kernel, kernel), jnp.ones(channels), jnp.zeros(channels)

    first, stack, strides, inside = unit(3, 16, 3), [], [], 16
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        for i in range(blocks):
            short = None if inside == channels else unit(inside, channels, 1)
            stack.append((unit(inside, channels, 3), unit(channels, channels, 3), short))
            strides.append(stride if i == 0 else 1)
            inside = channels
    p = {"first": first, "stack": stack, "out": (w(64, 10), jnp.zeros(10))}

    def apply(x, unit, stride):
        return _batch_norm(_conv(x, unit[0], stride), unit[1], unit[2])

    def loss(p, img, label):
        x = jax.nn.relu(apply(img, p["first"], 1))
        for (one, two, short), stride in zip(p["stack"], strides):
            t = apply(jax.nn.relu(apply(x, one, stride)), two, 1)
            x = jax.nn.relu(t + (x if short is None else apply(x, short, stride)))
        return _cross_entropy(x.mean((2, 3)) @ p["out"][0] + p["out"][1], label)

    return p, loss, momentum(0.01)


def resnet50():
    w = _Weights()

    def unit(inside, channels, kernel):
        return w(channels, inside, kernel, kernel), jnp.ones(channels), jnp.zeros(channels)

    first, stack, strides, inside = unit(3, 64, 7), [], [], 64
    for stage, (channels, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for i in range(count):
            wide = channels * 4
            short = None if inside == wide else unit(inside, wide, 1)
            block = unit(inside, channels, 1), unit(channels, channels, 3), unit(channels, wide, 1)
            stack.append((*block, short))
            strides.append(2 if i == 0 and stage else 1)
            inside = wide
    p = {"first": first, "stack": stack, "out": (w(2048, 1000), jnp.zeros(1000))}

    def apply(x, unit, stride=1):
        side = (unit[0].shape[2] - 1) // 2
        x = _conv(x, unit[0], stride, ((side, side), (side, side)))
        return _batch_norm(x, unit[1], unit[2])

    def loss(p, img, label):
        x = jax.nn.relu(apply(img, p["first"], 2))
        window, pad = (1, 1, 3, 3), ((0, 0), (0, 0), (1, 1), (1, 1))
        x = lax.reduce_window(x, -jnp.inf, lax.max, window, (1, 1, 2, 2), pad)
        for (one, two, three, short), stride in zip(p["stack"], strides):
            t = jax.nn.relu(apply(jax.nn.relu(apply(x, one)), two, stride))
            t = apply(t, three)
            x = jax.nn.relu(t + (x if short is None else apply(x, short, stride)))
        return _cross_entropy(x.mean((2, 3)) @ p["out"][0] + p["out"][1], label)

    return p, loss, momentum(0.1)


def transformer_encoder(batch=8, seq=64, d=256, heads=4, layers=4, vocab=8000):
    w = _Weights()
    p = {
        "embedding": w(vocab, d),
        "out": w(d, vocab),
        "bias": jnp.zeros(vocab),
        "layers": [
            {
                "q": w(d, d),
                "k": w(d, d),
                "v": w(d, d),
                "p": w(d, d),
                "f": w(d, 4 * d),
                "g": w(4 * d, d),
                "s1": jnp.ones(d),
                "s2": jnp.ones(d),
            }
            for _ in range(layers)
        ],
    }

    def norm(x, s):
        m, v = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - m) * lax.rsqrt(v + 1e-5) * s

    def loss(p, x, y):
        h = p["embedding"][x[..., 0]]
        for layer in p["layers"]:
            q, k, v = ((h @ layer[n]).reshape(batch, seq, heads, d // heads).transpose(0, 2, 1, 3) for n in "qkv")
            a = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) * (d // heads) ** -0.5)
            o = jnp.einsum("bhqk,bhkd->bhqd", a, v).transpose(0, 2, 1, 3).reshape(batch, seq, d)
            h = norm(h + o @ layer["p"], layer["s1"])
            h = norm(h + jax.nn.relu(h @ layer["f"]) @ layer["g"], layer["s2"])
        return _cross_entropy((h @ p["out"] + p["bias"]).reshape(batch * seq, vocab), y)

    return p, loss, adam(1e-3)


def stacked_lstm(width=128, vocab=5000, unroll=1):
    w, hidden = _Weights(), width // 4
    p = {
        "table": w(vocab, width),
        "fc": w(width, width),
        "w": [w(hidden, width) for _ in range(3)],
        "mix": [(w(width, width), w(hidden, width)) for _ in range(2)],
        "out": (w(width, 2), w(hidden, 2)),
    }

    def lstm(x, mask, weight, backwards):
        def cell(state, at):
            h, c = state
            now, here = at
            a, i, f, o = jnp.split(now + h @ weight, 4, 1)
            new_c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(a)
            new_h = jax.nn.sigmoid(o) * jnp.tanh(new_c)
            state = jnp.where(here[:, None], new_h, h), jnp.where(here[:, None], new_c, c)
            return state, state[0]

        start = jnp.zeros((x.shape[0], hidden))
        rows = x.swapaxes(0, 1), mask.T
        _, h = lax.scan(cell, (start, start), rows, reverse=backwards, unroll=unroll)
        return h.swapaxes(0, 1)

    def loss(p, words, mask, label):
        fc = p["table"][words] @ p["fc"]
        h = lstm(fc, mask, p["w"][0], False)
        for i, (a, b) in enumerate(p["mix"]):
            fc = fc @ a + h @ b
            h = lstm(fc, mask, p["w"][i + 1], i == 0)
        pooled = [jnp.where(mask[..., None], x, -1e9).max(1) for x in (fc, h)]
        return _cross_entropy(sum(x @ m for x, m in zip(pooled, p["out"])), label)

    return p, loss, adagrad(0.01)


def _padded(feed, longest=120):
    """The words of stacked_lstm as hand-written JAX takes them: padded, with a mask."""
    rows, offsets = np.array(feed["words"]), feed["words"].lod()[0]
    words = np.zeros((len(offsets) - 1, longest), np.int32)
    lengths = np.diff(offsets)
    for i, start in enumerate(offsets[:-1]):
        words[i, : lengths[i]] = rows[start : start + lengths[i], 0]
    return words, np.arange(longest) < lengths[:, None], feed["label"]


def _lazy_adam(table, moments, count, rows, gradients):
    """Adam of the rows that a batch has, each once: (the table, its moments)."""
    places = rows.shape[0]
    once, of = jnp.unique(rows, size=places, fill_value=table.shape[0], return_inverse=True)
    g = jax.ops.segment_sum(gradients, of.reshape(-1), places)
    m, v = (0.9 * moments[0][once] + 0.1 * g, 0.999 * moments[1][once] + 0.001 * g * g)
    scale = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    table = table.at[once].add(-scale * m / (jnp.sqrt(v) + 1e-8), mode="drop")
    return table, tuple(t.at[once].set(n, mode="drop") for t, n in zip(moments, (m, v)))


def _ctr_dnn(lazy_adam=False, slots=26, vocab=1000001, width=10):
    """(state, step) of SGD, or lazy Adam, on the rows that were looked up: differentiated with respect
    to the gathered rows, added where they came from.
    """
    w, sizes = _Weights(), (slots * width + 13, 400, 400, 400, 2)
    p = [(w(a, b), jnp.zeros(b)) for a, b in zip(sizes, sizes[1:])]
    table = jax.random.uniform(jax.random.PRNGKey(1), (vocab, width), minval=-1, maxval=1)
    init, update = adam(1e-3) if lazy_adam else sgd(0.01)
    moments = tuple(jnp.zeros_like(table) for _ in range(2 if lazy_adam else 0))

    def loss(p, rows, dense, label):
        x = jnp.concatenate([rows.reshape(dense.shape[0], -1), dense], 1)
        for kernel, bias in p[:-1]:
            x = jax.nn.relu(x @ kernel + bias)
        return _cross_entropy(x @ p[-1][0] + p[-1][1], label)

    def step(p, s, table, moments, ids, dense, label):
        flat = ids.reshape(-1)
        value, (g, rows) = jax.value_and_grad(loss, (0, 1))(p, table[flat], dense, label)
        p, s = update(p, g, s)
        if lazy_adam:
            table, moments = _lazy_adam(table, moments, s[2], flat, rows)
        else:
            table = table.at[flat].add(-0.01 * rows)
        return p, s, table, moments, value

    return [p, init(p), table, moments], step


def _joined(feed):
    """The slots of ctr_dnn as hand-written JAX takes them: one array of ids."""
    ids = np.concatenate([np.array(v) for n, v in feed.items() if n.startswith("slot")], 1).astype(np.int32)
    return ids, feed["dense"], feed["label"]


MODELS = {f.__name__: f for f in (mlp, mnist_conv, resnet_cifar, resnet50, transformer_encoder, stacked_lstm)}
TRAINED = (*MODELS, "ctr_dnn", "ctr_dnn_lazy_adam")
# How feeds in sequences become dense arrays, before the clock starts.
PREPARE = {"stacked_lstm": _padded, "ctr_dnn": _joined, "ctr_dnn_lazy_adam": _joined}


def _program(name, **sizes):
    """(state, step), where step(*state, *batch) returns (*state, loss)."""
    if name.startswith("ctr_dnn"):
        return _ctr_dnn(name == "ctr_dnn_lazy_adam", **sizes)
    p, loss, (init, update) = MODELS[name](**sizes)

    def step(p, s, *batch):
        value, g = jax.value_and_grad(loss)(p, *batch)
        p, s = update(p, g, s)
        return p, s, value

    return [p, init(p)], step


def _given(feed):
    return feed.values() if isinstance(feed, dict) else feed


def trainer(name, options=None, **sizes):
    """A function that runs one step on a feed (a dict of fluid_models) and returns the loss.
    `options`: of XLA. `sizes`: of the model.
    """
    state, step = _program(name, **sizes)
    donated = tuple(range(len(state)))
    compiled = jax.jit(step, donate_argnums=donated, compiler_options=options)

    def run(feed):
        *state[:], value = compiled(*state, *_given(feed))
        return float(value)

    return run


def flops(name, feed):
    """Floating-point operations of a step, by XLA's cost analysis; a loop's of all its turns."""
    state, step = _program(name, **({"unroll": True} if name == "stacked_lstm" else {}))
    return jax.jit(step).lower(*state, *_given(feed)).cost_analysis()["flops"]


def batches(name):
    """What makes batches of a model: its Fluid program is built and thrown away."""
    import fluid_models

    import jfluid

    with jfluid.program_guard(jfluid.Program(), jfluid.Program()), jfluid.unique_name.guard():
        return fluid_models.MODELS[name](jfluid)[1]
