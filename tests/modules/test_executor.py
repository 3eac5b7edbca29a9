"""Executor and Scope: feeds, fetches, state, and every error at the door."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, places


@pytest.fixture
def net():
    """loss = mean(x @ w), with one step of SGD."""
    main, startup = (
        fluid.default_main_program().global_block(),
        fluid.default_startup_program().global_block(),
    )
    x = main.create_var(name="x", shape=[-1, 4], dtype="float32", is_data=True)
    for block in (main, startup):
        block.create_parameter(name="w", shape=[4, 2], dtype="float32")
        block.create_var(name="lr", shape=[1], dtype="float32", persistable=True)
    startup.append_op("fill_constant", outputs={"Out": "w"}, attrs={"shape": [4, 2], "value": 0.5})
    startup.append_op("fill_constant", outputs={"Out": "lr"}, attrs={"shape": [1], "value": 0.1})
    main.append_op("mul", {"X": x, "Y": "w"}, {"Out": "h"})
    main.append_op("mean", {"X": "h"}, {"Out": "loss"})
    ((w, g),) = fluid.append_backward(main.var("loss"))
    main.append_op("sgd", {"Param": w, "Grad": g, "LearningRate": "lr"}, {"ParamOut": w})
    return fluid.Executor(fluid.CPUPlace())


def _weights():
    return np.array(fluid.global_scope().find_var("w").get_tensor())


X = np.arange(12, dtype="float32").reshape(3, 4)


def test_trains_and_keeps_state_in_the_scope(net):
    net.run(fluid.default_startup_program())
    loss, h = net.run(feed={"x": X}, fetch_list=["loss", "h"])
    assert loss.shape == (1,) and h.shape == (3, 2)
    np.testing.assert_allclose(loss, [(X @ np.full((4, 2), 0.5)).mean()], rtol=1e-6)
    expect = 0.5 - 0.1 * np.repeat(X.sum(0)[:, None], 2, 1) / 6
    np.testing.assert_allclose(_weights(), expect, rtol=1e-5)
    net.run(feed={"x": X}, fetch_list=[])
    assert not np.array_equal(_weights(), expect)


def test_fetches_and_tensors_are_copies(net):
    net.run(fluid.default_startup_program())
    tensor = fluid.global_scope().find_var("w").get_tensor()
    held = np.array(tensor)
    (fetched,) = net.run(feed={"x": X}, fetch_list=["w"])
    (lazy,) = net.run(feed={"x": X}, fetch_list=["w"], return_numpy=False)
    fetched[:] = 7
    kept = np.array(lazy)
    net.run(feed={"x": X})
    assert (held == 0.5).all() and np.array_equal(np.array(lazy), kept)
    assert not (_weights() == 7).any()


def test_a_feed_may_be_overwritten_as_soon_as_run_returns(net):
    net.run(fluid.default_startup_program())
    x = X.copy()
    net.run(feed={"x": x})
    x[:] = np.nan
    assert np.isfinite(_weights()).all()


def test_scopes_keep_values_apart_and_inherit(net):
    outer = fluid.Scope()
    with fluid.scope_guard(outer):
        net.run(fluid.default_startup_program())
    with pytest.raises(errors.UninitializedError, match="run the startup program"):
        net.run(feed={"x": X})
    inner = outer.new_scope()
    net.run(feed={"x": X}, scope=inner)
    assert inner.local_var_names() == [] and not (np.array(outer.find_var("w").get_tensor()) == 0.5).all()


def test_set_tensor_is_seen_and_checked(net):
    net.run(fluid.default_startup_program())
    tensor = fluid.global_scope().find_var("w").get_tensor()
    tensor.set(np.ones((4, 2), "float32"), fluid.CPUPlace())
    (loss,) = net.run(feed={"x": X}, fetch_list=["loss"])
    np.testing.assert_allclose(loss, [X.sum() / 3], rtol=1e-6)
    tensor.set(np.ones((3, 2), "float32"))
    with pytest.raises(
        errors.ProgramError,
        match=r"variable w: the scope holds shape \[3, 2\], the program expects \[4, 2\]",
    ):
        net.run(feed={"x": X})


@pytest.mark.parametrize(
    "feed, fetch, error, text",
    [
        ({}, ["loss"], errors.FeedError, "the program reads x, which the feed does not hold"),
        (
            {"x": X.astype("complex64")},
            [],
            errors.FeedError,
            r"expected dtype float32, found complex64.*astype",
        ),
        (
            {"x": X[0]},
            [],
            errors.ShapeError,
            r"operator mul.*failed.*\n.*x float32\[4\]",
        ),
        ({"x": "text"}, [], errors.FeedError, "feed x: expected an array of float32, found str"),
        ([{"x": X}, {"x": X}], [], errors.FeedError, "needs with_data_parallel"),
        ({"x": X[:, :3]}, [], errors.ShapeError, r"operator mul.*failed.*\n.*x float32\[3, 3\]"),
        ({"x": X}, ["lost"], errors.FetchError, "fetch lost: .*did you mean"),
        ({"x": X}, [3], errors.FetchError, "expected Variables or names, found int"),
    ],
)
def test_bad_input_is_refused_and_the_scope_stays(net, feed, fetch, error, text):
    net.run(fluid.default_startup_program())
    with pytest.raises(error, match=text):
        net.run(feed=feed, fetch_list=fetch)
    assert (_weights() == 0.5).all()
    net.run(feed={"x": X}, fetch_list=["loss"])


def test_an_operators_error_names_the_users_line(net):
    net.run(fluid.default_startup_program())
    with pytest.raises(errors.ShapeError, match=r"test_executor\.py.*in net"):
        net.run(feed={"x": X[:, :3]})


def test_all_unsupported_operators_come_in_one_error(net):
    from jfluid.ir.operator import Operator

    program = fluid.Program()
    for name in ("no_such_op", "nor_this", "no_such_op"):
        program.global_block().adopt_op(Operator(program.global_block(), name))
    with pytest.raises(errors.UnsupportedOpError, match="no_such_op, nor_this") as e:
        net.run(program)
    assert e.value.op_types == ("no_such_op", "nor_this")


def test_check_nan_inf_names_the_operator(net):
    net.run(fluid.default_startup_program())
    fluid.set_flags({"FLAGS_check_nan_inf": True})
    try:
        with pytest.raises(errors.OpError, match="operator mul gave a value that is not finite: h"):
            net.run(feed={"x": np.full_like(X, np.inf)})
        assert (_weights() == 0.5).all()
        net.run(feed={"x": X})
    finally:
        fluid.set_flags({"FLAGS_check_nan_inf": False})


def test_use_prune_leaves_updates_out(net):
    net.run(fluid.default_startup_program())
    net.run(feed={"x": X}, fetch_list=["loss"], use_prune=True)
    assert (_weights() == 0.5).all()


def test_close_and_bad_places(net):
    net.close()
    with pytest.raises(errors.JFluidError, match="closed"):
        net.run(feed={"x": X})
    with pytest.raises(errors.PlaceError, match=r"CUDAPlace\(63\): JAX sees \d+ GPU"):
        fluid.Executor(fluid.CUDAPlace(63))


def test_a_server_without_gpus_runs_on_the_host(monkeypatch, caplog):
    monkeypatch.setenv("TRAINING_ROLE", "PSERVER")
    monkeypatch.setattr(places, "_gpus", list)
    out = fluid.layers.scale(fluid.data("x", [2]), 2.0)
    exe = fluid.Executor(fluid.CUDAPlace(0))
    assert exe.place == fluid.CPUPlace()
    np.testing.assert_array_equal(exe.run(feed={"x": np.ones(2, "float32")}, fetch_list=[out])[0], [2, 2])
    assert caplog.messages == ["CUDAPlace(0): this parameter server sees no GPU; tables and updates are on the host"]
    monkeypatch.setenv("TRAINING_ROLE", "TRAINER")
    with pytest.raises(errors.PlaceError, match=r"CUDAPlace\(0\): JAX sees 0 GPU"):
        fluid.Executor(fluid.CUDAPlace(0))
    with pytest.raises(errors.PlaceError, match="expected CPUPlace"):
        fluid.Executor("cpu")


def test_flags():
    assert fluid.get_flags("FLAGS_check_nan_inf") == {"FLAGS_check_nan_inf": False}
    with pytest.raises(errors.ProgramError, match="did you mean FLAGS_check_nan_inf"):
        fluid.set_flags({"FLAGS_check_nan_in": True})
    with pytest.raises(errors.AttributeTypeError, match="expected bool"):
        fluid.set_flags({"FLAGS_check_nan_inf": "perhaps"})


def test_the_shape_of_layers_data_binds_no_feed():
    x = fluid.layers.data("x", [3, 1])
    out = fluid.layers.scale(x, 2.0)
    (got,) = fluid.Executor(fluid.CPUPlace()).run(feed={"x": X}, fetch_list=[out])
    np.testing.assert_array_equal(got, 2 * X)


def scaled(x, feed):
    out = fluid.layers.scale(x, 0.5)
    return fluid.Executor(fluid.CPUPlace()).run(feed={x.name: feed}, fetch_list=[out])[0]


def test_float16_is_converted_for_layers_data(caplog):
    x = fluid.layers.data("x_float16", [2])
    feed = np.array([[1, 2], [3, 4]], "float16")
    for _ in range(2):
        got = scaled(x, feed)
        np.testing.assert_array_equal(got, np.array([[0.5, 1], [1.5, 2]], "float32"))
        assert got.dtype == np.float32
    assert [m for m in caplog.messages if x.name in m] == [
        "feed x_float16: float16 is converted to the declared float32 in every run; feed float32"
    ]


@pytest.mark.parametrize("data", [fluid.data, fluid.layers.data])
def test_integers_that_may_be_cut_off_are_refused(data):
    with pytest.raises(errors.FeedError, match="expected dtype int32, found int64"):
        scaled(data("ids", [2, 1], dtype="int32"), np.ones((2, 1), "int64"))


def test_fluid_data_converts_no_feed():
    with pytest.raises(errors.FeedError, match="expected dtype float32, found float64"):
        scaled(fluid.data("x", [None, 2]), np.ones((3, 2)))


def test_the_shape_of_fluid_data_does():
    out = fluid.layers.scale(fluid.data("x", [None, 3]), 2.0)
    with pytest.raises(errors.FeedError, match=r"feed x: expected rank 2"):
        fluid.Executor(fluid.CPUPlace()).run(feed={"x": X[0]}, fetch_list=[out])


@pytest.mark.parametrize("declared", [[None, 1], [4, 1, 1]])
def test_a_feed_may_lack_last_dimensions_of_one(declared):
    out = fluid.layers.scale(fluid.data("x", declared), 2.0)
    exe = fluid.Executor(fluid.CPUPlace())
    (got,) = exe.run(feed={"x": X[0]}, fetch_list=[out])
    np.testing.assert_array_equal(got, 2 * X[0].reshape(4, *declared[1:]))
    with pytest.raises(errors.FeedError, match="feed x: expected rank"):
        exe.run(feed={"x": X[0].reshape(1, 4, 1, 1)}, fetch_list=[out])


@pytest.mark.parametrize("wish", [{"is_test": True}, {"use_global_stats": True}])
def test_statistics_that_are_not_renewed_are_not_overwritten(wish):
    """Others may run the same parameters meanwhile."""
    x = fluid.data("x", [None, 4], "float32")
    y = fluid.layers.batch_norm(x, moving_mean_name="mean", **wish)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.global_scope()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((3, 4), "float32")}, fetch_list=[y])
    held = scope.find_var("mean").get_tensor().value
    found = exe.run(feed={"x": np.ones((3, 4), "float32")}, fetch_list=[y, "mean"])
    assert scope.find_var("mean").get_tensor().value is held
    np.testing.assert_array_equal(found[1], np.zeros(4))
