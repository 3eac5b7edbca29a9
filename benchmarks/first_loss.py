"""The first loss, and streams of shapes as scripts have them, beside the real Fluid 1.8.5.

    python benchmarks/first_loss.py [STREAM ...] [--fluid PYTHON] [--steps N] [--rounds N]

Each stream runs in processes of its own, Fluid and jfluid in turn; jfluid twice, with an empty cache of compiled
programs and again with the one that the first process left. Seconds count from the start of the process.
Columns: to the first loss; steps 2 to N together; a later step (the mean of the last quarter, in
milliseconds); compilations by XLA; peak memory. Lower is better in all.
"""

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

STARTED = time.time()
HERE = os.path.abspath(__file__)


def attention_block(fluid, x, width, heads, bias):
    layers = fluid.layers

    def divided(value):
        value = layers.reshape(value, [0, 0, heads, width // heads])
        return layers.transpose(value, [0, 2, 1, 3])

    q, k, v = (divided(layers.fc(x, width, num_flatten_dims=2)) for _ in range(3))
    weights = layers.matmul(q, k, transpose_y=True, alpha=(width // heads) ** -0.5)
    weights = layers.softmax(weights if bias is None else weights + bias)
    weights = layers.dropout(weights, 0.1, dropout_implementation="upscale_in_train")
    out = layers.transpose(layers.matmul(weights, v), [0, 2, 1, 3])
    out = layers.fc(layers.reshape(out, [0, 0, width]), width, num_flatten_dims=2)
    x = layers.layer_norm(x + out, begin_norm_axis=2)
    inner = layers.fc(x, 4 * width, num_flatten_dims=2, act="gelu")
    inner = layers.fc(inner, width, num_flatten_dims=2)
    return layers.layer_norm(x + inner, begin_norm_axis=2)


def bert(fluid, np, batch_of=lambda step, length: 8):
    """Pre-training with masked words: the padded length and the number of masked words differ by batch."""
    layers, width, heads, words = fluid.layers, 128, 2, 1000
    src = fluid.data("src", [None, None], "int64")
    pos = fluid.data("pos", [None, None], "int64")
    mask = fluid.data("mask", [None, None, 1], "float32")
    picked = fluid.data("picked", [None, 1], "int64")
    label = fluid.data("label", [None, 1], "int64")
    x = fluid.embedding(src, [words, width]) + fluid.embedding(pos, [512, width])
    x = layers.layer_norm(x, begin_norm_axis=2)
    bias = layers.matmul(mask, mask, transpose_y=True)
    bias = layers.scale(bias, 10000.0, bias=-1.0, bias_after_scale=False)
    bias = layers.stack([bias] * heads, axis=1)
    bias.stop_gradient = True
    for _ in range(4):
        x = attention_block(fluid, x, width, heads, bias)
    found = layers.gather(layers.reshape(x, [-1, width]), picked)
    found = layers.layer_norm(layers.fc(found, width, act="gelu"), begin_norm_axis=1)
    cost = layers.softmax_with_cross_entropy(layers.fc(found, words), label)
    loss = layers.mean(cost)
    fluid.optimizer.Adam(1e-4).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        length = int(random.randint(24, 97))
        batch = batch_of(step, length)
        masked = max(int(batch * length * 0.15) + int(random.randint(-3, 4)), 1)
        return {
            "src": random.randint(0, words, (batch, length)).astype("int64"),
            "pos": np.tile(np.arange(length), (batch, 1)).astype("int64"),
            "mask": np.ones((batch, length, 1), "float32"),
            "picked": random.randint(0, batch * length, (masked, 1)).astype("int64"),
            "label": random.randint(0, words, (masked, 1)).astype("int64"),
        }

    return static(fluid, loss, feed)


def tokens(fluid, np):
    """As `bert`, with batches of about 512 tokens: both the number of sentences and their length differ."""
    return bert(fluid, np, lambda step, length: max(512 // length, 1))


def episodes(fluid, np):
    """A policy gradient: episodes end when they end."""
    layers = fluid.layers
    seen = fluid.data("seen", [None, 4], "float32")
    act = fluid.data("act", [None, 1], "int64")
    reward = fluid.data("reward", [None, 1], "float32")
    policy = layers.fc(layers.fc(seen, 20, act="tanh"), 2, act="softmax")
    chosen = layers.log(layers.reduce_sum(policy * layers.one_hot(act, 2), dim=1, keep_dim=True))
    loss = layers.reduce_mean(-1.0 * chosen * reward)
    fluid.optimizer.Adam(1e-2).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        length = int(random.randint(9, 200))
        return {
            "seen": random.randn(length, 4).astype("float32"),
            "act": random.randint(0, 2, (length, 1)).astype("int64"),
            "reward": random.randn(length, 1).astype("float32"),
        }

    return static(fluid, loss, feed)


def last_of_one(fluid, np):
    """Batches of 64, of which each tenth is the last of an epoch and has one example."""
    layers = fluid.layers
    x = fluid.data("x", [None, 784], "float32")
    y = fluid.data("y", [None, 1], "int64")
    given = layers.fc(layers.fc(layers.fc(x, 200, act="relu"), 200, act="relu"), 10, act="softmax")
    loss = layers.mean(layers.cross_entropy(given, y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        count = 1 if step % 10 == 9 else 64
        return {
            "x": random.randn(count, 784).astype("float32"),
            "y": random.randint(0, 10, (count, 1)).astype("int64"),
        }

    return static(fluid, loss, feed)


def alternating(fluid, np):
    """A program that trains and its clone that evaluates, in turn, on batches of different sizes."""
    layers = fluid.layers
    x = fluid.data("x", [None, 64], "float32")
    y = fluid.data("y", [None, 1], "int64")
    hidden = layers.batch_norm(layers.fc(x, 64, act="relu"))
    given = layers.fc(hidden, 10, act="softmax")
    loss = layers.mean(layers.cross_entropy(given, y))
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    random = np.random.RandomState(0)

    def step(at):
        count = int(random.randint(20, 65))
        feed = {
            "x": random.randn(count, 64).astype("float32"),
            "y": random.randint(0, 10, (count, 1)).astype("int64"),
        }
        program = test if at % 2 else fluid.default_main_program()
        return executor.run(program, feed=feed, fetch_list=[loss.name])[0]

    return step


def gan(fluid, np):
    """Two programs over the same parameters, in turn."""
    layers = fluid.layers

    def judged(x):
        hidden = layers.fc(x, 64, act="relu", param_attr="d0.w", bias_attr="d0.b")
        return layers.fc(hidden, 1, param_attr="d1.w", bias_attr="d1.b")

    def made(noise):
        hidden = layers.fc(noise, 64, act="relu", param_attr="g0.w", bias_attr="g0.b")
        return layers.fc(hidden, 32, act="tanh", param_attr="g1.w", bias_attr="g1.b")

    def cost(logit, label):
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, label))

    startup, programs = fluid.Program(), []
    for names in (["d0.w", "d0.b", "d1.w", "d1.b"], ["g0.w", "g0.b", "g1.w", "g1.b"]):
        program = fluid.Program()
        with fluid.program_guard(program, startup):
            noise = fluid.data("noise", [None, 16], "float32")
            label = fluid.data("label", [None, 1], "float32")
            logit = judged(made(noise))
            if names[0] == "d0.w":
                logit = layers.concat([logit, judged(fluid.data("real", [None, 32], "float32"))])
            loss = cost(logit, label)
            fluid.optimizer.Adam(1e-3).minimize(loss, startup, parameter_list=names)
        programs.append((program, loss))
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    random = np.random.RandomState(0)

    def step(at):
        program, loss = programs[at % 2]
        feed = {"noise": random.randn(32, 16).astype("float32")}
        feed["label"] = np.ones((32 if at % 2 else 64, 1), "float32")
        if not at % 2:
            feed["real"] = random.randn(32, 32).astype("float32")
        return executor.run(program, feed=feed, fetch_list=[loss])[0]

    return step


def mobilenet(fluid, np):
    """Thirteen depthwise and pointwise convolutions, on 64 x 64 images; the last batch is short."""
    layers = fluid.layers
    image = fluid.data("image", [None, 3, 64, 64], "float32")
    label = fluid.data("label", [None, 1], "int64")

    def normal(x, filters, size, stride=1, groups=1):
        x = layers.conv2d(x, filters, size, stride, size // 2, groups=groups, bias_attr=False, use_cudnn=False)
        return layers.batch_norm(x, act="relu6")

    x = normal(image, 16, 3, 2)
    channels = 16
    for filters, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        x = normal(normal(x, channels, 3, stride, channels), filters, 1)
        channels = filters
    x = layers.pool2d(x, pool_type="avg", global_pooling=True)
    given = layers.fc(x, 10, act="softmax")
    loss = layers.mean(layers.cross_entropy(given, label))
    fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        count = 5 if step % 10 == 9 else 16
        return {
            "image": random.randn(count, 3, 64, 64).astype("float32"),
            "label": random.randint(0, 10, (count, 1)).astype("int64"),
        }

    return static(fluid, loss, feed)


def tagger(fluid, np):
    """A GRU and a CRF over sentences with a LoD."""
    layers = fluid.layers
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    label = fluid.data("label", [None, 1], "int64", lod_level=1)
    x = fluid.layers.embedding(words, [1000, 32])
    x = layers.dynamic_gru(layers.fc(x, 3 * 32), 32)
    cost = layers.linear_chain_crf(layers.fc(x, 9), label, fluid.ParamAttr("transition"))
    loss = layers.mean(cost)
    fluid.optimizer.SGD(0.01).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        lengths = random.randint(3, 40, 16).tolist()
        rows = sum(lengths)

        def tensor(most):
            values = random.randint(0, most, (rows, 1)).astype("int64")
            return fluid.create_lod_tensor(values, [lengths], fluid.CPUPlace())

        return {"words": tensor(1000), "label": tensor(9)}

    return static(fluid, loss, feed)


def eager(fluid, np):
    """Imperative mode: sentences of different lengths through attention."""
    dygraph, layers, width = fluid.dygraph, fluid.layers, 64
    dygraph.enable_dygraph(fluid.CPUPlace()) if hasattr(dygraph, "enable_dygraph") else None
    guard = dygraph.guard(fluid.CPUPlace())
    guard.__enter__()
    table = dygraph.Embedding([1000, width])
    parts = [dygraph.Linear(width, width) for _ in range(4)]
    out, norm = dygraph.Linear(width, 1000), dygraph.LayerNorm(width)
    parameters = [p for part in (table, *parts, out, norm) for p in part.parameters()]
    optimizer = fluid.optimizer.Adam(1e-3, parameter_list=parameters)
    random = np.random.RandomState(0)

    def step(at):
        length = int(random.randint(10, 60))
        words = random.randint(0, 1000, (8, length)).astype("int64")
        x = table(dygraph.to_variable(words))
        q, k, v = (part(x) for part in parts[:3])
        weights = layers.softmax(layers.matmul(q, k, transpose_y=True, alpha=width**-0.5))
        x = norm(x + parts[3](layers.matmul(weights, v)))
        label = dygraph.to_variable(words[:, :, None])
        loss = layers.mean(layers.softmax_with_cross_entropy(out(x), label))
        loss.backward()
        optimizer.minimize(loss)
        for parameter in parameters:
            parameter.clear_gradient()
        return loss.numpy()

    return step


STREAMS = {
    f.__name__: f
    for f in (
        bert,
        tokens,
        episodes,
        last_of_one,
        alternating,
        gan,
        mobilenet,
        tagger,
        eager,
    )
}


def static(fluid, loss, feed):
    """What runs a step of the default program."""
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    program = fluid.default_main_program()
    return lambda step: executor.run(program, feed=feed(step), fetch_list=[loss])[0]


def count_compilations(engine):
    """A list that gets an entry for each compilation by XLA."""
    found = []
    if engine == "jfluid":
        import jax

        def noted(event, seconds, **_):
            if event == "/jax/core/compile/backend_compile_duration":
                found.append(seconds)

        jax.monitoring.register_event_duration_secs_listener(noted)
    return found


def run_one(engine, stream, steps):
    """Run a stream in this process; print a line of JSON."""
    import numpy as np

    fluid = importlib.import_module(engine)
    compilations = count_compilations(engine)
    step = STREAMS[stream](fluid, np)
    losses, ends = [], []
    for at in range(steps):
        losses.append(float(np.asarray(step(at)).ravel()[0]))
        ends.append(time.time() - STARTED)
    quarter = max(steps // 4, 1)
    figures = {
        "first": ends[0],
        "rest": ends[-1] - ends[0],
        "later_ms": 1000 * (ends[-1] - ends[-1 - quarter]) / quarter,
        "compilations": len(compilations),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "finite": bool(np.isfinite(losses).all()),
    }
    print("FIGURES " + json.dumps(figures), flush=True)


def measured(python, engine, stream, steps, cache):
    """The figures of a process that runs a stream."""
    environment = os.environ | {"FLAGS_compilation_cache_dir": cache, "PYTHONWARNINGS": "ignore"}
    command = [python, HERE, "--one", engine, stream, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("FIGURES "):
            return json.loads(line.partition(" ")[2])
    raise SystemExit(f"{engine} {stream}: {done.stderr.strip()[-800:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("streams", nargs="*", choices=[*STREAMS, []], metavar="STREAM")
    parser.add_argument("--fluid", metavar="PYTHON", help="an interpreter with PaddlePaddle 1.8.5")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "STREAM"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one(*given.one, given.steps)
        return
    columns = ("first", "rest", "later_ms", "compilations", "peak_mb", "finite")
    print(f"{'stream':14}{'engine':16}" + "".join(f"{name:>13}" for name in columns), flush=True)
    for stream in given.streams or STREAMS:
        for _ in range(given.rounds):
            with tempfile.TemporaryDirectory() as cache:
                runs = [("jfluid, first", sys.executable, "jfluid")]
                runs.append(("jfluid, second", sys.executable, "jfluid"))
                if given.fluid:
                    runs.insert(0, ("Fluid", given.fluid, "paddle.fluid"))
                for name, python, engine in runs:
                    found = measured(python, engine, stream, given.steps, cache)
                    cells = "".join(
                        f"{v:13.2f}" if isinstance(v, float) else f"{v!s:>13}" for v in (found[c] for c in columns)
                    )
                    print(f"{stream:14}{name:16}{cells}", flush=True)


if __name__ == "__main__":
    main()
