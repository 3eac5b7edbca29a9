"""Executables in memory: one for each form of the arguments, within a number of bytes all together."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.runtime import executables, jax_caches
from jfluid.compile.runtime.executables import KEPT, Executables
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.host import heap


@pytest.fixture
def bound():
    """Sets how many bytes executables may have."""
    before = fluid.get_flags(executables.FLAG)
    yield lambda size: fluid.set_flags({executables.FLAG: size})
    fluid.set_flags(before)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(executables, "_FEW", 1)


class Traced:
    """A function of (kept, others), and what it was traced for."""

    def __init__(self):
        self.shapes = []
        self.call = Executables(lambda: jax.jit(lambda *a: self._run(*a), donate_argnums=(0,)))

    def _run(self, donated, kept, key):
        self.shapes.append((donated[0].shape, kept[0].shape))
        return donated[0] + kept[0].sum() + (0 if kept[1] is None else kept[1]), key

    def of(self, rows, more=None, columns=2):
        given = np.ones((rows, columns), np.float32)
        result = self.call((jnp.zeros(3),), (given, more), None)[0]
        return float(result[0])


def test_each_form_is_traced_once():
    found = Traced()
    for _ in range(2):
        assert [found.of(n) for n in (1, 2, 3, 2, 1)] == [2, 4, 6, 4, 2]
        assert found.of(2, np.float32(1.0)[None]) == 5
        assert found.of(2, columns=3) == 6
    assert len(found.shapes) == 5


def test_the_forms_that_differ_are_looked_up_alone(monkeypatch):
    found = Traced()
    for n in (1, 2, 3):
        found.of(n)
    asked = []
    form = executables._form
    monkeypatch.setattr(executables, "_form", lambda value: asked.append(value) or form(value))
    assert found.of(2) == 4
    assert [value.shape for value in asked] == [(2, 2)]


def test_an_error_of_the_function_is_raised_as_it_is_and_nothing_stays(monkeypatch):
    kept = executables.Kept()  # without those of other tests
    monkeypatch.setattr(executables, "KEPT", kept)

    def wrong(value):
        raise errors.ShapeError("it is wrong")

    call = Executables(lambda: jax.jit(lambda value: wrong(value)))
    for _ in range(2):
        with pytest.raises(errors.ShapeError, match="it is wrong"):
            call(np.ones(3))
    assert kept.bytes == 0


def test_arguments_that_lie_elsewhere_are_compiled_for_anew():
    first, *_, last = jax.devices("cpu")
    call = Executables(lambda: jax.jit(lambda value: value + 1))
    for device in (first, last, first):
        found = call(jax.device_put(np.ones(3), device))
        assert found.tolist() == [2, 2, 2] and found.devices() == {device}


def test_what_was_used_least_goes_first(bound, few, monkeypatch):
    kept = executables.Kept()  # without what other tests have left
    monkeypatch.setattr(executables, "KEPT", kept)
    found = Traced()
    found.of(1)
    size = next(e for e in kept if e.owner() is found.call).bytes
    bound(4 * size)
    for n in range(2, 9):
        assert (found.of(1), found.of(n)) == (2, 2 * n)
        assert kept.bytes <= executables.most_bytes()
    assert len([s for s in found.shapes if s[1] == (1, 2)]) == 1  # it was used all the time
    before = len(found.shapes)
    assert found.of(2) == 4  # it comes back
    assert len(found.shapes) == before + 1


def test_the_latest_stay_however_large_they_are(bound, monkeypatch):
    monkeypatch.setattr(executables, "KEPT", executables.Kept())  # without those of other tests
    bound(1)
    monkeypatch.setattr(executables, "_FEW", 3)
    found = Traced()
    for _ in range(3):
        for n in (1, 2, 3):
            found.of(n)
    assert len(found.shapes) == 3


def test_they_go_before_the_system_has_no_mappings_left(monkeypatch, tmp_path, few):
    monkeypatch.setattr(executables, "KEPT", executables.Kept())  # without those of other tests
    (tmp_path / "most").write_text("8\n")
    (tmp_path / "maps").write_text("a line\n" * 7)
    monkeypatch.setattr(executables, "_MOST_MAPPINGS", str(tmp_path / "most"))
    monkeypatch.setattr(executables, "_MAPPINGS", str(tmp_path / "maps"))
    monkeypatch.setattr(executables, "_LOOK_AT_MAPPINGS", 1)
    found = Traced()
    for n in (1, 2, 3):
        found.of(n)
    (tmp_path / "maps").write_text("a line\n")
    before = len(found.shapes)
    found.of(3)
    assert len(found.shapes) == before  # the last one stays
    found.of(1)
    assert len(found.shapes) == before + 1
    monkeypatch.setattr(executables, "_MAPPINGS", str(tmp_path / "absent"))
    assert not executables._few_mappings_are_left()


def test_the_default_is_a_part_of_the_memory(bound, monkeypatch):
    bound(0)
    for memory, most in ((1 << 30, 256 << 20), (8 << 30, 512 << 20), (64 << 30, 2 << 30)):
        monkeypatch.setattr(heap, "memory_bytes", lambda memory=memory: memory)
        assert executables.most_bytes() == most


def net(width):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        loss = fluid.layers.mean(fluid.layers.fc(x, width, act="tanh"))
        fluid.optimizer.Adam(0.1).minimize(loss)
    return main, startup, loss


def train(executor, width=2, rows=2):
    main, startup, loss = net(width)
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        executor.run(main, {"x": np.ones((rows, 3), "float32")}, [loss])


@pytest.mark.parametrize("closes", [True, False])
def test_what_an_executor_has_compiled_goes_with_it_at_once(closes):
    executor = fluid.Executor(fluid.CPUPlace())
    gc.collect()
    before = set(map(id, KEPT))
    gc.disable()
    try:
        train(executor)
        made = [weakref.ref(e) for e in KEPT if id(e) not in before]
        assert len(made) == 2
        if closes:
            executor.close()
        else:
            del executor
        assert not [e for e in made if e() is not None]
    finally:
        gc.enable()


def test_a_step_that_was_dropped_gives_the_same_numbers_when_it_comes_back(bound, few):
    main, startup, loss = net(4)
    x = {"x": np.ones((2, 3), "float32")}
    executor = fluid.Executor(fluid.CPUPlace())

    def losses():
        with fluid.scope_guard(fluid.Scope()):
            executor.run(startup)
            return [executor.run(main, x, [loss])[0].item() for _ in range(4)]

    main.random_seed = startup.random_seed = 3
    expected = losses()
    bound(1)
    train(executor, 5)
    assert losses() == expected


def test_steps_of_imperative_mode_and_their_operators_are_dropped_too(bound, few):
    bound(1)
    with fluid.dygraph.guard(fluid.CPUPlace()):
        for n in range(1, 5):
            x = fluid.dygraph.to_variable(np.ones((2, 2), "float32"))
            for i in range(30):  # more than is compiled whole in any case
                x = fluid.layers.scale(x, 1.0, bias=float(n * i))
            assert x.numpy()[0, 0] == 1 + n * 435
    assert len(list(KEPT)) <= 1 + executables._FEW


def test_jax_forgets_what_it_has_traced(monkeypatch):
    monkeypatch.setattr(jax_caches, "MOST_TRACED", 5)
    mine = jax.jit(lambda value: value + 1)
    mine(1.0)
    traced = jax.jit(lambda value: jnp.where(value > 1, value, 0))
    jax.clear_caches()
    for n in range(1, 8):
        traced.lower(np.ones(n))
    assert traced._cache_size() == 0
    jax_caches.look()
    assert jax_caches.traced() == 0
    assert mine(1.0) == 2


@pytest.mark.parametrize("frozen", [0, 1])
def test_jax_forgets_what_it_has_compiled_for_itself(monkeypatch, frozen):
    monkeypatch.setattr(jax_caches, "MOST_COMPILED", 3)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)  # by `tests/conftest.py`

    def function(value):
        return value + 1

    function.__module__ = "jax.numpy"
    mine, theirs = jax.jit(lambda value: value + 1), jax.jit(function)
    for n in range(1, 6):
        assert mine(np.ones(n)).shape == theirs(np.ones(n)).shape
    jax_caches.look()
    # what is frozen cannot be found, so that all goes
    assert (theirs._cache_size(), mine._cache_size()) == (0, 0 if frozen else 5)


def test_what_is_kept_by_size():
    kept = LruCache[str](9, len, lambda: 5)
    for word in ("aa", "bbb", "c"):
        kept.get_or_make(word, lambda word=word: word)
    assert list(kept) == ["bbb", "c"]
    kept.get_or_make("a long one", lambda: "a long one")
    assert list(kept) == ["a long one"]


@pytest.mark.parametrize("interprets", [True, False])
def test_a_step_that_xla_would_compile_for_hours_is_refused(interprets, monkeypatch):
    """Operations are counted before anything is compiled or interpreted, bodies of loops included."""
    monkeypatch.setattr(executables, "_MOST_OPERATIONS", 40)
    monkeypatch.setattr(executables.library_fusions, "compiled", lambda traced: pytest.fail("it was compiled"))
    x = fluid.data("x", [2], "float32")
    for _ in range(50):
        x = fluid.layers.tanh(x)
    before = fluid.get_flags("FLAGS_interpret_first_steps")
    with fluid.scope_guard(fluid.Scope()):
        fluid.set_flags({"FLAGS_interpret_first_steps": interprets})
        try:
            with pytest.raises(errors.UnsupportedError, match=r"the step has \d+ operations, expected at most 40"):
                fluid.Executor(fluid.CPUPlace()).run(feed={"x": np.ones(2, "float32")}, fetch_list=[x])
        finally:
            fluid.set_flags(before)


def test_bodies_of_loops_count():
    loop = Executables(lambda: jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(jnp.cos(y)), x)))
    most, executables._MOST_OPERATIONS = executables._MOST_OPERATIONS, 3
    try:
        with pytest.raises(errors.UnsupportedError, match="expected at most 3"):
            loop(np.ones(2, np.float32))
    finally:
        executables._MOST_OPERATIONS = most
