"""Shapes kept on disk: a process that builds a program again evaluates no operator for them."""

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jfluid as fluid
from jfluid.caches import kept_files
from jfluid.compile.runtime import executable_cache
from jfluid.ir import schema as hook
from jfluid.ops import registry, schema, shape_cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of kept shapes."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    chosen = fluid.get_flags("FLAGS_compilation_cache_dir")
    fluid.set_flags({"FLAGS_compilation_cache_dir": str(tmp_path)})
    monkeypatch.setattr(hook, "_schema", hook.current())  # the real one comes back
    yield tmp_path
    fluid.set_flags(chosen)
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def evaluated(monkeypatch):
    """The types of the operators that were evaluated, in order."""
    found = []

    def evaluate(op, *arguments):
        found.append(op.type)
        return real(op, *arguments)

    real = schema._evaluate
    monkeypatch.setattr(schema, "_evaluate", evaluate)
    return found


def built(width=4):
    """The shapes in a program that a process builds which knows no shapes yet, and then keeps
    them.
    """
    hook.install(schema.RegistrySchema())
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        hidden = fluid.layers.dropout(fluid.layers.fc(x, width, act="tanh"), 0.5)
        words = fluid.data("words", [None, 1], dtype="int64", lod_level=1)
        rows = fluid.layers.sequence_pool(fluid.layers.embedding(words, [10, width]), "sum")
        fluid.layers.mean(fluid.layers.elementwise_add(hidden, rows))
    hook.current().keep()
    return {n: (v.shape, v.dtype, v.lod_level) for n, v in main.global_block().vars.items()}


def kept(folder):
    return sorted(folder.glob("shapes-*"))


def test_a_second_process_evaluates_no_operator(folder, evaluated):
    first = built()
    assert "tanh" in evaluated and len(kept(folder)) == 1
    content = kept(folder)[0].read_bytes()
    evaluated.clear()
    assert built() == first and evaluated == []
    assert kept(folder)[0].read_bytes() == content  # nothing was new


def test_they_are_kept_with_an_executable_that_is(folder, monkeypatch):
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    compilation_cache.reset_cache()  # which else goes on in the folder of this run
    hook.install(schema.RegistrySchema())
    for worth, files in ((1000.0, 0), (0.0, 1)):
        monkeypatch.setattr(executable_cache, "_LONG", worth)
        feed = {"x": np.ones((2, 3 + files), "float32")}  # two programs: JAX's cache has neither
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            mean = fluid.layers.mean(fluid.data("x", feed["x"].shape))
            fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[mean])
        assert len(kept(folder)) == files
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
    compilation_cache.reset_cache()


def test_other_shapes_are_evaluated_and_kept_beside_the_first(folder, evaluated):
    built(4)
    evaluated.clear()
    built(5)
    assert "tanh" in evaluated
    evaluated.clear()
    built(4)
    built(5)
    assert evaluated == []


@pytest.mark.parametrize("change", ["release", "setting", "folder", "damage"])
def test_what_may_be_wrong_is_evaluated_anew(folder, evaluated, monkeypatch, change):
    first = built()
    evaluated.clear()
    if change == "release":
        monkeypatch.setattr(kept_files, "sources", lambda: "another")
    elif change == "damage":
        kept(folder)[0].write_bytes(kept(folder)[0].read_bytes()[:-1])
    elif change == "folder":
        jax.config.update("jax_compilation_cache_dir", str(folder / "other"))
    with jax.numpy_dtype_promotion("strict" if change == "setting" else "standard"):
        assert built() == first
    assert "tanh" in evaluated
    assert len(kept(folder)) == (2 if change in ("release", "setting") else 1)


def test_operators_of_users_are_not_kept(folder, evaluated, monkeypatch):
    own = dict(registry._OPS)
    monkeypatch.setattr(registry, "_OPS", own)
    for known in ("tanh", "tanh_grad"):
        own.pop(known, None)
    registry.op("tanh", ins=("X",), outs=("Out",))(lambda x: x)
    built()
    evaluated.clear()
    built()
    assert set(evaluated) == {"tanh"}


def test_wrong_shapes_raise_each_time():
    for _ in range(2):
        hook.install(schema.RegistrySchema())
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            x, y = fluid.data("x", [2, 3]), fluid.data("y", [4, 5])
            with pytest.raises(fluid.errors.ShapeError, match="cannot take these inputs"):
                fluid.layers.matmul(x, y)
        hook.current().keep()


def test_files_and_shapes_have_a_bound(folder, evaluated, monkeypatch):
    monkeypatch.setattr(shape_cache, "MOST_FILES", 1)
    monkeypatch.setattr(shape_cache, "MOST_SHAPES", 2)
    built()
    monkeypatch.setattr(kept_files, "sources", lambda: "another")
    evaluated.clear()
    built()
    all_of_it = len(evaluated)
    assert len(kept(folder)) == 1
    evaluated.clear()
    built()
    assert 0 < len(evaluated) < all_of_it


def test_a_process_keeps_no_more_than_so_many(evaluated, monkeypatch):
    monkeypatch.setattr(shape_cache, "MOST_IN_MEMORY", 3)
    hook.install(schema.RegistrySchema())
    for width in range(1, 9):
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            fluid.layers.fc(fluid.data("x", [2, 3]), width)
    assert len(hook.current()._inferred._found) == 3
