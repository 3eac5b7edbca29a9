"""A program's random_seed may be changed between two runs, however the program is run; and nothing
is taken for another program's, or another executor's."""

import gc
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.server.program_store import ProgramStore
from jfluid.distributed.wire import connections
from jfluid.ir.operator import OpRole
from jfluid.ps_server.store import BlockUpdate, Change
from tests.distributed.job import Job, transpile
from tests.launch_case import launched

pytestmark = pytest.mark.usefixtures("interpreted_module")

X = np.ones((4, 64), "float32")


def dropped():
    """What dropout leaves of x [N, 64], in a program that trains a parameter."""
    x = fluid.data("x", [None, 64])
    y = layers.dropout(x, 0.5)
    predicted = layers.fc(
        y,
        1,
        param_attr=fluid.ParamAttr("w", initializer=fluid.initializer.Constant(0.1)),
        bias_attr="b",
    )
    fluid.optimizer.SGD(0.01).minimize(layers.mean(predicted))
    return y


class Mode:
    """One row_update to run a program. `run` runs it once, and returns the random numbers that it
    drew.
    """

    def __init__(self):
        self.scope, self.exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
        self.main, self.startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(self.main, self.startup), fluid.unique_name.guard():
            self.y = self.build()
        self.exe.run(self.startup, scope=self.scope)

    build = staticmethod(dropped)

    def run(self):
        return self.exe.run(self.main, feed={"x": X}, fetch_list=[self.y], scope=self.scope)[0]

    def close(self):
        self.exe.close()


class Pruned(Mode):
    def run(self):
        return self.exe.run(self.main, feed={"x": X}, fetch_list=[self.y], scope=self.scope, use_prune=True)[0]


class Startup(Mode):
    @staticmethod
    def build():
        layers.create_parameter([4, 64], "float32", name="noise", default_initializer=fluid.initializer.Normal())

    def run(self):
        self.startup.random_seed = self.main.random_seed
        self.exe.run(self.startup, scope=self.scope)
        return np.array(self.scope.find_var("noise").get_tensor())


class Reader(Mode):
    def build(self):
        x = fluid.data("x", [None, 64])
        self.loader = fluid.io.DataLoader.from_generator([x], capacity=2, iterable=False)
        self.loader.set_batch_generator(lambda: ([X] for _ in range(9)))
        self.loader.start()
        return layers.dropout(x, 0.5)

    def run(self):
        return self.exe.run(self.main, fetch_list=[self.y], scope=self.scope)[0]

    def close(self):
        self.loader.reset()


class InReplicas(Mode):
    def __init__(self):
        super().__init__()
        self.compiled = fluid.CompiledProgram(self.main).with_data_parallel(places=fluid.cpu_places(2))

    def run(self):
        return self.exe.run(self.compiled, feed={"x": X}, fetch_list=[self.y], scope=self.scope)[0]


class ReaderOfReplicas(InReplicas, Reader):
    def run(self):
        return self.exe.run(self.compiled, fetch_list=[self.y], scope=self.scope)[0]


class OfADataset(Mode):
    def build(self):
        x = fluid.data("x", [None, 64])
        y = layers.dropout(x, 0.5)
        layers.assign(y, layers.create_global_var([4, 64], 0.0, "float32", persistable=True, name="kept"))
        Path("ones.txt").write_text(("64" + " 1" * 64 + "\n") * 4)
        self.dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
        self.dataset.set_use_var([x])
        self.dataset.set_batch_size(4)
        self.dataset.set_filelist(["ones.txt"])
        return y

    def run(self):
        self.exe.train_from_dataset(self.main, self.dataset, scope=self.scope)
        return np.array(self.scope.find_var("kept").get_tensor())


class WithServers(Mode):
    """A trainer; its numbers come from what is left of its program when servers' part is taken
    out.
    """

    replicas = False

    def __init__(self):
        self.job = Job(self.build_for_job).__enter__()
        self.job.begin()
        (trainer,) = self.job.trainers
        self.exe, self.scope, self.main, (self.y,) = (
            trainer.executor,
            trainer.scope,
            trainer.main,
            trainer.built,
        )
        self.program = (
            fluid.CompiledProgram(self.main).with_data_parallel(places=fluid.cpu_places(2))
            if self.replicas
            else self.main
        )

    @staticmethod
    def build_for_job():
        return (dropped(),)

    def run(self):
        return self.exe.run(self.program, feed={"x": X}, fetch_list=[self.y], scope=self.scope)[0]

    def close(self):
        self.job.__exit__(None, None, None)


class WithServersInReplicas(WithServers):
    replicas = True


class BlockOfAServer(Mode):
    """The noise that an update on a server adds (Dpsgd); a store is made whenever a server begins
    to serve.
    """

    def __init__(self):
        transpiler, *_ = transpile(self.build_for_job, ["127.0.0.1:1"])
        self.main, startup = transpiler.get_pserver_programs("127.0.0.1:1")
        self.exe, self.scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
        self.exe.run(startup, scope=self.scope)

    @staticmethod
    def build_for_job():
        loss = layers.mean(layers.fc(fluid.data("x", [None, 64]), 4, param_attr="w", bias_attr=False))
        fluid.optimizer.Dpsgd(0.1, clip=1.0, batch_size=4.0, sigma=1.0).minimize(loss)
        return (loss,)

    def run(self):
        store = ProgramStore(self.exe.engine.runner(self.main)._program, self.scope, self.exe.engine)
        before = np.array(store.block("w").read()[0])
        store.apply([], [BlockUpdate("w", Change.GRADIENT, np.ones((64, 4), np.float32))])
        return np.array(store.block("w").read()[0]) - before


MODES = [
    Mode,
    Pruned,
    Startup,
    Reader,
    InReplicas,
    ReaderOfReplicas,
    OfADataset,
    WithServers,
    WithServersInReplicas,
    BlockOfAServer,
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
def test_a_seed_that_is_changed_takes_effect(mode, folder):
    def draws(*seeds):
        running, found = mode(), []
        try:
            for seed in seeds:
                running.main.random_seed = seed
                found.append(running.run())
        finally:
            running.close()
        return found

    same, changed, other = draws(1, 1, 1), draws(1, 2, 1), draws(2, 2)
    np.testing.assert_allclose(changed[0], same[0], atol=1e-5)
    # as if the seed had been this one from the beginning
    np.testing.assert_allclose(changed[1], other[1], atol=1e-5)
    np.testing.assert_allclose(changed[2], same[2], atol=1e-5)
    assert (np.abs(changed[1] - same[1]) > 1e-3).any()


def test_a_clone_has_the_seed_of_its_time_and_then_its_own():
    running = Mode()
    running.main.random_seed = 1
    twin = running.main.clone()
    running.main.random_seed = 2
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(running.startup, scope=scope)

    def draw(program, seed=None):
        program.random_seed = program.random_seed if seed is None else seed
        scope.steps.clear()
        return exe.run(program, feed={"x": X}, fetch_list=[running.y.name], scope=scope)[0]

    first, second = draw(twin), draw(running.main)
    assert (first != second).any() and twin.random_seed == 1
    np.testing.assert_array_equal(draw(twin, 2), second)
    np.testing.assert_array_equal(draw(running.main, 1), first)


def test_a_function_of_jax_draws_by_its_key_alone():
    running = Mode()
    apply, params = fluid.to_jax(running.main, feeds=["x"], fetches=[running.y], scope=running.scope)

    def draw():
        return np.asarray(apply(params, X, key=jax.random.key(3))[0])

    before = draw()
    running.main.random_seed = 5
    np.testing.assert_array_equal(draw(), before)
    again, params = fluid.to_jax(running.main, feeds=["x"], fetches=[running.y], scope=running.scope)
    np.testing.assert_array_equal(np.asarray(again(params, X, key=jax.random.key(3))[0]), before)
    assert (np.asarray(apply(params, X, key=jax.random.key(4))[0]) != before).any()


def test_servers_programs_have_the_seed_of_when_they_are_asked_for():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        dropped()
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(0, pservers="127.0.0.1:1,127.0.0.1:2", trainers=1)
        main.random_seed, startup.random_seed = 7, 40
        server, its_startup = transpiler.get_pserver_programs("127.0.0.1:2")
    assert (server.random_seed, its_startup.random_seed) == (7, 40)


PROCESS = """
import os, sys
import numpy as np
import jfluid as fluid
from jfluid import layers
build = fluid.BuildStrategy()
build.num_trainers, build.trainer_id = 2, int(os.environ["PADDLE_TRAINER_ID"])
os.environ["CPU_NUM"] = "1"
main, found = fluid.default_main_program(), []
y = layers.dropout(fluid.data("x", [None, 64]), 0.5)
exe = fluid.Executor(fluid.CPUPlace())
program = fluid.CompiledProgram(main).with_data_parallel(build_strategy=build)
for seeds in ((1, 1), (1, 2), (2, 2)):
    with fluid.scope_guard(fluid.Scope()):
        for seed in seeds:
            main.random_seed = seed
            found.append(exe.run(program, feed={"x": np.ones((4, 64), "float32")}, fetch_list=[y])[0])
np.save(f"draws.{build.trainer_id}.npy", found)
"""


@pytest.mark.process
def test_a_seed_that_is_changed_takes_effect_across_processes(folder):
    Path("train.py").write_text(PROCESS)
    done = launched("--cpus", 2, "train.py", forks=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        ones, changed, twos = np.load(f"draws.{rank}.npy").reshape(3, 2, -1)
        np.testing.assert_array_equal(changed, [ones[0], twos[1]])
        assert (ones[1] != twos[1]).any()


# ---- what is not to be taken for something else --------------------------------------------------


def test_roles_decide_what_replicas_run_and_are_part_of_the_program():
    running = InReplicas()
    w = lambda: np.array(running.scope.find_var("w").get_tensor())  # noqa: E731

    def moved():
        before = w()
        running.run()
        return np.abs(w() - before).sum()

    running.main.random_seed = 1
    halves = moved()
    before = running.main.fingerprint
    (seed,) = (op for op in running.main.global_block().ops if op.attr("op_role") == OpRole.Backward | OpRole.Loss)
    # gradients are no longer those of a replica's share of the loss
    seed.set_attr("op_role", OpRole.Backward)
    assert running.main.fingerprint != before
    assert moved() > 1.5 * halves


def test_parameters_of_updates_are_part_of_the_program():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        dropped()
        main = fluid.default_main_program()
        before = main.fingerprint
        op = next(op for op in main.global_block().ops if op.attrs.get("op_role_var"))
        op.set_attr("op_role_var", ["other", "other@GRAD"])
        assert main.fingerprint != before


def test_attributes_are_part_of_a_program_in_full():
    def program(values, block=None):
        made = fluid.Program()
        op = made.global_block().append_op(
            "fill_constant",
            outputs={"Out": made.global_block().create_var(name="x")},
            attrs={"shape": [1]},
        )
        op.attrs["values"] = values
        if block is not None:
            op.attrs["blocks"] = [made.create_block(), made.create_block()][:block]
        made._touch()
        return made.fingerprint

    large = np.zeros(5000)
    changed = large.copy()
    changed[2500] = 1  # what the text of an array leaves out
    assert program(large) != program(changed) and program(large) == program(large.copy())
    assert program([], 2) == program([], 2) != program([], 1)


def test_programs_of_other_divisions_have_runners_of_their_own():
    transpiler, _, _ = transpile(WithServers.build_for_job, ["127.0.0.1:1"])
    program, exe = transpiler.get_trainer_program(wait_port=False), fluid.Executor(fluid.CPUPlace())
    twin = program.clone()
    assert exe.engine.runner(program) is exe.engine.runner(twin)
    layout = replace(program.division.layout, endpoints=("127.0.0.1:1", "127.0.0.1:2"))
    twin.division = replace(program.division, layout=layout)
    assert twin.fingerprint == program.fingerprint
    assert [len(exe.engine.runner(p).program.endpoints) for p in (twin, program)] == [2, 1]


def test_an_executor_that_is_gone_is_not_taken_for_a_new_one():
    with Job(WithServers.build_for_job) as job:
        job.begin()
        (trainer,) = job.trainers
        connection = connections.connect(trainer_program.read(trainer.main))
        assert list(connection.users) == [trainer.executor.engine]
        temporary = fluid.Executor(fluid.CPUPlace())
        temporary.run(trainer.main, feed={"x": X}, scope=trainer.scope)
        assert len(connection.users) == 2
        del temporary
        deadline = time.monotonic() + 120  # a thread of its step may still be at its end
        while len(connection.users) > 1:
            assert time.monotonic() < deadline
            gc.collect()
        assert list(connection.users) == [trainer.executor.engine]
        for _ in range(50):  # one of them may lie where the other lay
            fluid.Executor(fluid.CPUPlace()).close()
        trainer.run({"x": X})  # nobody has said goodbye


# ---- what decides which numbers are drawn --------------------------------------------------------


def two_layers(names):
    """A net whose parameters have names of their own, or made up ones."""
    x = layers.dropout(fluid.data("x", [None, 64]), 0.5, name=names and names[0])
    for name, size in zip(names or (None, None), (16, 3)):
        x = layers.fc(x, size, param_attr=name, bias_attr=False, name=name)
    return x


def drawn(names=None, more=False, read=False):
    """The first parameters, and what dropout leaves, of a program that is built now."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup):
        out = two_layers(names)
        if more:
            layers.fc(out, 7, param_attr="later")
            layers.create_parameter([4], "float32", default_initializer=fluid.initializer.Normal())
    (mask,) = (op.output("Out")[0] for op in main.global_block().ops if op.type == "dropout")
    weights = [p.name for p in main.all_parameters()][:2]
    if read:
        main, startup = (fluid.Program.parse_from_string(p.serialize_to_string()) for p in (main, startup))
        main.random_seed = startup.random_seed = 5
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    found = [np.array(scope.find_var(name).get_tensor()) for name in weights]
    return [*found, exe.run(main, feed={"x": X}, fetch_list=[mask], scope=scope)[0]]


def test_equal_programs_draw_alike_whatever_their_variables_are_called():
    first = drawn()
    for other in (drawn(), drawn(("a", "b")), drawn(("b", "a"), more=True), drawn(read=True)):
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert (first[0][:16, :3] != first[1]).any()  # two operators of a kind do not draw alike


def test_parts_of_a_program_draw_what_the_whole_draws():
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        x = fluid.data("x", [None, 64])
        masks = [layers.dropout(x, 0.5) for _ in range(3)]
        built = fluid.Program()
        with fluid.program_guard(built, startup):
            one = layers.dropout(fluid.data("x", [None, 64]), 0.5)
    main.random_seed = built.random_seed = 3
    last = masks[-1].name
    part = main._prune([masks[-1]])
    exe = fluid.Executor(fluid.CPUPlace())

    def draw(program, name):
        return exe.run(program, feed={"x": X}, fetch_list=[name], scope=fluid.Scope())[0]

    whole = draw(main, last)
    np.testing.assert_array_equal(draw(part, last), whole)
    np.testing.assert_array_equal(draw(part.clone(), last), whole)
    alone = draw(built, one.name)
    np.testing.assert_array_equal(alone, draw(main, masks[0].name))
    assert (alone != whole).any()
    renumbered = fluid.Program.parse_from_string(part.serialize_to_string())
    renumbered.random_seed = 3  # the file does not tell what was removed
    np.testing.assert_array_equal(draw(renumbered, last), alone)
    assert renumbered.fingerprint != part.fingerprint
