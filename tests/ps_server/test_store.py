"""DenseBlock, the ledger of what was applied, and the store that holds both together with
tables.
"""

import threading

import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import specs
from jfluid.ps_server.dense import DenseBlock
from jfluid.ps_server.errors import StateError, UnknownNameError
from jfluid.ps_server.ledger import WINDOW, Ledger, MutationId
from jfluid.ps_server.store import Change, SharedExclusiveLock, Store
from jfluid.ps_server.wire import updates_of

SGD = specs.Sgd(learning_rate=0.5)


def block(shape=(2, 3), optimizer=SGD, **more):
    return DenseBlock(specs.BlockSpec(name="w", shape=shape, optimizer=optimizer, **more))


def call(sequence, trainer=0, incarnation=1, outstanding=1):
    return MutationId(trainer, incarnation, sequence, outstanding)


# ---- dense blocks --------------------------------------------------------------------------------


def test_reads_are_not_changed_by_later_updates():
    w = block(initializer=specs.Constant(value=1))
    value, version = w.read()
    assert w.push(np.ones((2, 3), np.float32)) == version + 1
    assert (value == 1).all() and (w.read()[0] == 0.5).all()
    with pytest.raises(ValueError, match="read-only"):
        value[:] = 0


def test_dense_adam():
    """Against the formula, with the powers of the step itself (sparse rows take those of the
    next).
    """
    w = block((4,), specs.Adam(learning_rate=0.1), initializer=specs.Uniform())
    expected, first, second = w.read()[0].astype(np.float64), 0.0, 0.0
    for step in range(1, 6):
        gradient = np.cos(np.arange(4) + step)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        expected -= 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step) * first / (np.sqrt(second) + 1e-8)
        w.push(gradient.astype(np.float32))
    np.testing.assert_allclose(w.read()[0], expected, rtol=1e-4, atol=1e-5)


def test_dense_ftrl():
    """Against the formula. Small gradients leave zeros, as the L1 penalty is for."""
    w = block((4,), specs.Ftrl(learning_rate=0.1, l1=0.5, l2=0.2), initializer=specs.Uniform())
    value, squared, linear = w.read()[0].astype(np.float64), 0.0, 0.0
    for step in range(1, 6):
        gradient = np.array([1, -1, 0.01, 0.5]) * np.cos(0.3 * step)
        before, squared = squared, squared + gradient**2
        linear = linear + gradient - (np.sqrt(squared) - np.sqrt(before)) / 0.1 * value
        value = np.where(abs(linear) > 0.5, (0.5 * np.sign(linear) - linear) / (np.sqrt(squared) / 0.1 + 0.4), 0)
        w.push(gradient.astype(np.float32))
    np.testing.assert_allclose(w.read()[0], value, rtol=1e-4, atol=1e-5)
    assert 0 < np.count_nonzero(value) < 4


def test_differences_values_and_rates():
    w = block((2,))
    w.assign(np.array([1, 2], np.float32))
    w.add(np.array([1, 1], np.float32))
    w.push(np.array([1, 1], np.float32), learning_rate=2.0)
    assert w.read()[0].tolist() == [0, 1] and w.version == 3


@pytest.mark.parametrize("gradient", [np.ones(3, np.float32), np.ones((2, 3)), [[1.0] * 3] * 2])
def test_gradients_that_do_not_fit(gradient):
    w = block()
    with pytest.raises(errors.ServerError, match=r"block w: gradient: expected float32 \[2, 3\], found"):
        w.push(gradient)
    assert w.version == 0


# ---- ledger --------------------------------------------------------------------------------------


def applied(ledger, *calls):
    result = []
    for one in calls:
        with ledger.once(one) as first:
            result.append(first)
    return result


def test_each_call_is_applied_once_in_any_order():
    ledger = Ledger()
    calls = [call(s) for s in (2, 1, 2, 5, 3, 1, 5, 4, 4)]
    assert applied(ledger, *calls) == [True, True, False, True, True, False, False, True, False]
    assert ledger.through(0) == (1, 5)
    assert applied(ledger, call(1, trainer=1)) == [True] and ledger.trainers() == [0, 1]


def test_a_call_that_failed_may_be_sent_again():
    ledger = Ledger()
    with pytest.raises(ZeroDivisionError), ledger.once(call(1)):
        raise ZeroDivisionError
    assert applied(ledger, call(1), call(1)) == [True, False]


def test_a_new_incarnation_starts_anew_and_ends_the_old_one():
    ledger = Ledger()
    applied(ledger, call(1), call(2))
    assert applied(ledger, call(1, incarnation=7)) == [True]
    with pytest.raises(StateError, match="trainer 0: incarnation 1 has ended; incarnation 7 is at work"):
        applied(ledger, call(3))


def test_a_duplicate_waits_no_longer_than_its_caller_lives():
    ledger = Ledger()
    assert ledger.begin(call(1))
    with pytest.raises(StateError, match="the caller has gone"):
        ledger.begin(call(1), alive=lambda: False)
    ledger.commit([call(1)])
    assert not ledger.begin(call(1), alive=lambda: False)


def test_what_a_trainer_has_given_up_while_it_was_applied_is_not_lost():
    ledger = Ledger()
    assert ledger.begin(call(1))
    applied(ledger, call(2, outstanding=2))
    ledger.commit([call(1)])
    assert ledger.lost == 0 and ledger.through(0) == (1, 2) and applied(ledger, call(1), call(3)) == [False, True]
    assert ledger.state()["0"]["beyond"] == []


@pytest.mark.parametrize("wrong", [call(0), call(-1), call(1, outstanding=0), call(3, outstanding=4), call(1 + WINDOW)])
def test_sequences_that_cannot_be(wrong):
    ledger = Ledger()
    with pytest.raises(errors.ServerError, match="trainer 0: expected 1 <= outstanding <= sequence"):
        applied(ledger, wrong)
    assert ledger.trainers() == []


def test_lost_calls_are_counted_once():
    ledger = Ledger()
    applied(ledger, *(call(s) for s in range(1, 9)))
    saved = ledger.state()
    applied(ledger, *(call(s) for s in range(9, 13)), call(14))
    restored = Ledger()
    restored.restore(saved)
    later = [call(15, outstanding=13), call(14, outstanding=13), call(14, outstanding=13)]
    assert applied(restored, *later) == [True, True, False]
    assert restored.lost == 4  # 9 to 12; 13 may still come
    assert (
        applied(restored, call(13, outstanding=13)) == [True] and restored.through(0) == (1, 15) and restored.lost == 4
    )


def test_a_duplicate_waits_for_the_call_that_runs():
    ledger, inside, finish, results = Ledger(), threading.Event(), threading.Event(), []

    def run():
        with ledger.once(call(1)) as first:
            inside.set()
            finish.wait(120)
            results.append(first)

    def repeat():
        with ledger.once(call(1)) as first:
            results.append(first)

    threads = [threading.Thread(target=run), threading.Thread(target=repeat)]
    threads[0].start()
    assert inside.wait(120)
    threads[1].start()
    threads[1].join(0.05)
    assert results == []
    finish.set()
    for thread in threads:
        thread.join(120)
    assert results == [True, False]


# ---- store ---------------------------------------------------------------------------------------


def test_names_stand_for_one_thing():
    store = Store()
    spec = specs.TableSpec(name="words", width=2, optimizer=SGD)
    assert store.create_table(spec) is store.create_table(spec)
    with pytest.raises(errors.ServerError, match="words is there already, and is different"):
        store.create_table(spec.model_copy(update={"width": 3}))
    with pytest.raises(errors.ServerError, match="words is there already"):
        store.create_block(specs.BlockSpec(name="words", shape=(2,), optimizer=SGD))
    with pytest.raises(UnknownNameError, match="there is no table 'word' .did you mean words"):
        store.table("word")
    with pytest.raises(UnknownNameError, match="there is no block 'words'"):
        store.block("words")


def test_a_cut_waits_for_mutations_and_mutations_for_the_cut():
    lock, order, inside = SharedExclusiveLock(), [], threading.Event()
    finish = threading.Event()

    def mutate():
        with lock.shared():
            inside.set()
            finish.wait(120)
            order.append("mutation")

    def cut():
        with lock.exclusive():
            order.append("cut")

    threads = [threading.Thread(target=mutate), threading.Thread(target=cut)]
    threads[0].start()
    assert inside.wait(120)
    threads[1].start()
    threads[1].join(0.05)
    assert order == []
    finish.set()
    for thread in threads:
        thread.join(120)
    assert order == ["mutation", "cut"]
    with lock.shared(), lock.shared():
        pass


def test_gradients_for_a_program_are_refused_before_anything_changes():
    store = Store()
    store.create_table(specs.TableSpec(name="t", width=2, optimizer=SGD))
    store.create_table(specs.TableSpec(name="p", width=2, optimizer=specs.Program(learning_rate=0.0)))
    ids, values = np.arange(3, dtype="<i8").tobytes(), np.ones(6, "<f4").tobytes()
    request = pb.PushRequest(rows=[pb.RowsChange(table=name, ids=ids, values=values) for name in "tp"])
    with pytest.raises(errors.ServerError, match="table p: its optimizer is a program.*push values or differences"):
        updates_of(request, store)
    request.rows[1].change = Change.ADD
    rows, _ = updates_of(request, store)
    store.apply(rows, [])
    assert len(store.tables["t"]) == len(store.tables["p"]) == 3
