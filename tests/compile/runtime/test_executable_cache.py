"""Executables kept on disk: a program that was compiled before runs without being traced."""

import os
import threading

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jfluid as fluid
from jfluid.caches import kept_files
from jfluid.compile.lowering import trace
from jfluid.compile.runtime import executable_cache, executable_prefetch, memory
from jfluid.machine_code import kernel_registry
from jfluid.ops import registry


@pytest.fixture(autouse=True)
def folder(tmp_path):
    """The folder of kept executables and of JAX's cache, which all of them are worth."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    chosen = fluid.get_flags("FLAGS_compilation_cache_dir")
    fluid.set_flags({"FLAGS_compilation_cache_dir": str(tmp_path)})
    fluid.Executor(fluid.CPUPlace())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    yield tmp_path
    fluid.set_flags(chosen)
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def traced(monkeypatch):
    """A list with an item for each segment that was traced."""
    found = []

    def lower(*arguments, **options):
        found.append(arguments[0])
        return real(*arguments, **options)

    real = trace.lower
    monkeypatch.setattr(trace, "lower", lower)
    return found


def net(dropout):
    """A program, its startup program and its loss."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        one = fluid.initializer.Constant(0.1)
        hidden = fluid.layers.fc(x, 4, act="tanh", param_attr=one)
        loss = fluid.layers.mean(fluid.layers.dropout(hidden, 0.5) if dropout else hidden)
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, startup, loss


def losses(rows=(2, 2, 2), dropout=False):
    """What a new Executor, which knows no steps, gives for batches of so many rows."""
    main, startup, loss = net(dropout)
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        return [executor.run(main, {"x": np.full((n, 3), 0.5, "float32")}, [loss])[0].item() for n in rows]


def wait_for(name):
    """Wait for the threads of a name."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


def kept(folder):
    wait_for(executable_cache.THREAD)
    return sorted(folder.glob("step-*"))


def test_a_second_start_traces_nothing(folder, traced):
    first = losses(dropout=True)
    assert len(kept(folder)) == 2 and len(traced) == 2
    assert losses(dropout=True) == first and len(traced) == 2
    # Another batch size is traced, is kept, too, and what is kept goes on running its own.
    assert losses((2, 5, 2), True)[0] == first[0] and len(traced) == len(kept(folder)) == 3
    assert losses((2, 5, 2, 5), True)[0] == first[0] and len(traced) == 3


def test_a_step_that_sorts_is_kept(folder, traced):
    def run():
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            x = fluid.data("x", [None, 3], "float32")
            fetched = [*fluid.layers.argsort(x), fluid.layers.topk(x, 2)[0]]
        with fluid.scope_guard(fluid.Scope()):
            executor = fluid.Executor(fluid.CPUPlace())
            return [v.tolist() for v in executor.run(main, {"x": np.array([[2, 3, 1]], "float32")}, fetched)]

    first = run()
    assert len(kept(folder)) == 1 and len(traced) == 1
    assert run() == first and len(traced) == 1


def test_what_is_damaged_is_compiled_anew(folder, traced):
    first = losses()
    for path in kept(folder):
        path.write_bytes(path.read_bytes()[:-1])
    assert losses() == first and len(traced) == 4
    assert losses() == first and len(traced) == 4


def test_what_is_kept_is_not_in_the_cache_of_jax_too(folder):
    losses()
    assert len(kept(folder)) == 2 and jax.config.jax_enable_compilation_cache
    assert [path.name for path in folder.glob("jit_fluid_*")] == []


def test_what_is_kept_never_comes_from_the_cache_of_jax(folder):
    jax.jit(lambda x: x + 1)(np.ones(3))  # JAX now uses its cache
    first = losses()
    assert [path.name for path in folder.glob("jit_fluid_*")] == []
    for path in kept(folder):
        path.unlink()
    assert losses() == first  # compiled anew, and kept with code
    assert losses() == first
    jax.jit(lambda x: x + 2)(np.ones(3))
    assert [path.name for path in folder.glob("jit__lambda*")]


def test_another_release_machine_or_setting_finds_nothing(folder, traced, monkeypatch):
    first = losses((2,))
    with jax.default_matmul_precision("highest"):
        assert losses((2,)) == first and len(traced) == 4
    for module, changed in ((kept_files, "sources"), (executable_cache, "_machine")):
        monkeypatch.setattr(module, changed, lambda: "another")
        assert losses((2,)) == first
    assert len(traced) == len(kept(folder)) == 8


def test_a_changed_source_file_of_the_package_finds_nothing(monkeypatch):
    found = dict.fromkeys(path for path, _, _ in kept_files.source_files(os.path.dirname(fluid.__file__)))
    assert {fluid.__file__, registry.__file__, kept_files.__file__} <= found.keys()
    folders = []
    monkeypatch.setattr(kept_files, "source_files", lambda folder: folders.append(folder) or [])
    kept_files.sources.__wrapped__()
    assert folders == [os.path.dirname(fluid.__file__)]


def test_operators_of_users_are_traced(folder, traced, monkeypatch):
    registry.find("tanh_grad")  # made when it is asked for
    own = dict(registry._OPS)
    monkeypatch.setattr(registry, "_OPS", own)
    del own["tanh"], own["tanh_grad"]
    registry.op("tanh", ins=("X",), outs=("Out",))(lambda x: x)
    losses((2,))
    assert len(kept(folder)) == 1  # of the startup program
    losses((2,))
    assert len(traced) == 3


def test_sequences_are_kept_and_checked_steps_are_traced(folder, traced):
    x = fluid.data("x", [None, 2], lod_level=1)
    pooled = fluid.layers.sequence_pool(x, "sum")
    rows = fluid.create_lod_tensor(np.ones((3, 2), "float32"), [[1, 2]], fluid.CPUPlace())

    def run():
        executor = fluid.Executor(fluid.CPUPlace())
        got = executor.run(feed={"x": rows}, fetch_list=[pooled])[0]
        assert got.tolist() == [[1, 1], [2, 2]]
        return len(traced), len(kept(folder))

    found = run()
    assert found[0] == 1 and run() == found
    fluid.set_flags({"FLAGS_check_nan_inf": True})
    try:
        assert [run(), run()] == [(2, found[1]), (3, found[1])]
    finally:
        fluid.set_flags({"FLAGS_check_nan_inf": False})


def test_what_is_noted_beside_an_executable_is_known_at_a_second_start(folder, traced, monkeypatch):
    """A large step is waited for, which is known from tracing."""
    monkeypatch.setattr(memory, "LARGE", 0)
    losses((2,))
    kept(folder)
    waited = []
    monkeypatch.setattr(jax, "block_until_ready", lambda values: waited.append(values) or values)
    losses((2,))
    assert len(traced) == 2 and waited


def test_an_executable_under_the_name_of_another_one_is_passed_over(folder, traced):
    """Its shapes are others."""
    first, second = losses((2, 3)), losses((3, 2))
    files = [p for p in kept(folder) if p.name.startswith("step-")]
    contents = [p.read_bytes() for p in files]
    for path, content in zip(files, [*contents[1:], contents[0]]):
        path.write_bytes(content)
    traced.clear()
    assert (losses((2, 3)), losses((3, 2))) == (first, second)
    assert len(traced) == len(files) > 2


def test_files_have_a_bound_in_bytes(folder):
    def write(name, at):
        path = folder / name
        kept_files.write(path, bytes(np.random.RandomState(at).bytes(200)), 9)
        os.utime(path, (at, at))

    (folder / "jit_x-cache").write_bytes(bytes(200))
    os.utime(folder / "jit_x-cache", (1, 1))
    (folder / "notes").write_bytes(bytes(900))  # the user's own
    os.utime(folder / "notes", (1, 1))
    before = fluid.get_flags("FLAGS_compilation_cache_max_bytes")
    fluid.set_flags({"FLAGS_compilation_cache_max_bytes": 800})
    try:
        for at, name in enumerate(["step-a", "step-b", "step-c"], start=2):
            write(name, at)
        assert sorted(p.name for p in folder.iterdir()) == ["notes", "step-a", "step-b", "step-c"]
        assert kept_files.read(folder / "step-a")  # what is read stays
        write("shapes-d", 5)
        assert sorted(p.name for p in folder.iterdir()) == ["notes", "shapes-d", "step-a", "step-c"]
    finally:
        fluid.set_flags(before)


def test_the_oldest_go_first(folder, monkeypatch):
    monkeypatch.setattr(executable_cache, "MOST_FILES", 1)
    losses((2,))
    assert len(kept(folder)) == 1


def test_a_cache_of_the_users_is_left_alone(folder, traced):
    jax.config.update("jax_compilation_cache_dir", str(folder / "other"))
    losses((2,))
    assert kept(folder) == []


def test_a_second_start_loads_the_step_while_the_startup_program_runs(folder, traced, monkeypatch):
    real, loads = executable_cache._AHEAD._load, []

    def load(path, devices):
        loads.append((path.name, threading.current_thread() is threading.main_thread()))
        return real(path, devices)

    def start(rows):
        """The losses of a start, and the files that it loaded: by the main thread, and by another."""
        loads.clear()
        found = losses((rows,))
        wait_for(executable_prefetch.THREAD)
        wait_for(executable_cache.THREAD)
        return found, [n for n, main in loads if main], [n for n, main in loads if not main]

    monkeypatch.setattr(executable_cache._AHEAD, "_load", load)
    two, (step,), ahead = start(2)
    assert ahead == []
    assert start(2) == (two, [], [step]) and len(traced) == 2
    # What is loaded ahead and not wanted is not run, and what came instead is noted.
    five, (other,), ahead = start(5)
    assert ahead == [step] and other != step
    assert start(5) == (five, [], [other]) and len(traced) == 3


def _convolves():
    """The loss of a step of a new Executor, with a convolution that machine code of our own computes."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [2, 16, 16, 16])
        loss = fluid.layers.mean(fluid.layers.conv2d(x, 16, 3, padding=1))
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return exe.run(main, feed={"x": np.ones((2, 16, 16, 16), "float32")}, fetch_list=[loss])[0]


def _recurs():
    """What a program with an LSTM gives, for rows of ones."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.layers.lod_reset(fluid.data("x", [5, 64]), target_lod=[0, 2, 5])
        one = fluid.initializer.Constant(0.1)
        hidden, _ = fluid.layers.dynamic_lstm(x, 64, param_attr=fluid.ParamAttr(initializer=one))
        loss = fluid.layers.mean(fluid.layers.sequence_last_step(hidden))
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return exe.run(main, feed={"x": np.ones((5, 64), "float32")}, fetch_list=[loss])[0]


def _looks_up():
    """What a program with a table gives, for many of its rows."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        one = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.1))
        rows = fluid.embedding(fluid.data("x", [500], "int64"), [9, 4], param_attr=one)
        loss = fluid.layers.mean(rows)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return exe.run(main, feed={"x": np.arange(500) % 9}, fetch_list=[loss])[0]


@pytest.mark.parametrize(
    "run, group",
    [(_convolves, "convolution"), (_recurs, "lstm"), (_looks_up, "row")],
)
def test_machine_code_is_known_before_an_executable_that_calls_it(traced, monkeypatch, run, group):
    if not kernel_registry.supports(group):
        pytest.skip("no machine code of this kind is made for this processor")
    expected, asked = run(), []
    monkeypatch.setattr(kernel_registry, "is_on", lambda name: asked.append(name) or True)
    traced.clear()
    assert run() == expected
    assert group in asked and not traced
    monkeypatch.setattr(kernel_registry, "is_on", lambda name: False)
    assert abs(run() - expected) < 1e-4  # by the library: nothing is loaded
    assert traced
