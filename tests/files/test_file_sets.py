"""Saves that are killed, or whose disk is full, at each of their steps: a load finds all the new
files or all the old ones.
"""

import errno
import functools
import itertools
import os
import resource
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.files import file_sets, saved_model
from jfluid.fleet import numbered_checkpoints
from jfluid.fleet.filesystem import LocalFS
from tests.failing_disk import Disk, Killed, left_in


def net():
    main, start = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, start), fluid.unique_name.guard():
        x = fluid.data("x", [None, 2])
        out = fluid.layers.fc(x, 2, param_attr="encoder/w", bias_attr="encoder/b")
        fluid.optimizer.Momentum(0.1, 0.9).minimize(fluid.layers.mean(out))
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(start)
    return main, exe, x, out


class Model:
    """A program whose variables all have one value, and the ways to save it."""

    def __init__(self):
        self.main, self.exe, self.x, self.out = net()
        self.names = [v.name for v in self.main.list_vars() if fluid.io.is_persistable(v)]

    def put(self, value):
        for name in self.names:
            tensor = fluid.global_scope().find_var(name).get_tensor()
            tensor.set(np.full(tensor.shape(), value, "float32"), fluid.CPUPlace())

    def parameters(self):
        scope = fluid.global_scope()
        names = [p.name for p in self.main.all_parameters()]
        return {float(v) for n in names for v in np.unique(scope.find_var(n).get_tensor())}

    def values(self):
        scope = fluid.global_scope()
        return {float(v) for n in self.names for v in np.unique(scope.find_var(n).get_tensor())}

    def persistables(self, folder, **more):
        fluid.io.save_persistables(self.exe, folder, self.main, **more)

    def load_persistables(self, folder, **more):
        fluid.io.load_persistables(self.exe, folder, self.main, **more)
        return self.values()

    def inference(self, folder, **more):
        with fluid.unique_name.guard():
            fluid.io.save_inference_model(folder, ["x"], [self.out], self.exe, self.marked(), **more)

    def marked(self):
        """The program with an attribute that tells which save its file is of."""
        twin = self.main.clone(for_test=True)
        value = next(iter(self.values()))
        twin.global_block().append_op(
            "scale",
            {"X": [twin.global_block().var(self.out.name)]},
            {"Out": [twin.global_block().var(self.out.name)]},
            {"scale": value},
        )
        return twin

    def load_inference(self, folder, **more):
        with fluid.scope_guard(fluid.Scope()):
            program, _, _ = fluid.io.load_inference_model(folder, self.exe, **more)
            found = [v.name for v in program.list_vars() if fluid.io.is_persistable(v)]
            scope = fluid.global_scope()
            values = {float(v) for n in found for v in np.unique(scope.find_var(n).get_tensor())}
        assert not saved_model.read_saved_model(str(folder)).faults
        scales = [op.attr("scale") for op in program.global_block().ops if op.type == "scale"]
        return values | set(scales[:1])

    def state(self, folder):
        fluid.load(self.main, f"{folder}/m")
        state = fluid.load_program_state(f"{folder}/m")
        return self.values() | {float(v) for a in state.values() for v in np.unique(a)}

    def program_state(self, folder):
        state = fluid.load_program_state(str(folder))
        fluid.load(self.main, str(folder))
        return self.values() | {float(v) for a in state.values() for v in np.unique(a)}

    def dygraph(self, folder):
        value = next(iter(self.values()))
        with fluid.dygraph.guard():
            layer = fluid.dygraph.Linear(2, 3)
            layer.set_dict({n: np.full(p.shape, value, "f") for n, p in layer.state_dict().items()})
            fluid.save_dygraph(layer.state_dict(), f"{folder}/m")

    def load_dygraph(self, folder):
        return {float(v) for a in fluid.load_dygraph(f"{folder}/m")[0].values() for v in np.unique(a)}

    def checkpoint(self, folder):
        status = numbered_checkpoints.TrainStatus(int(next(iter(self.values()))))
        numbered_checkpoints.save(str(folder), status, LocalFS(), str(folder), self.persistables)

    def load_checkpoint(self, folder):
        status = numbered_checkpoints.load(str(folder), 0, LocalFS(), str(folder), self.load_persistables)
        return self.values() | {float(status._epoch_no)}


SAVERS = {
    "save_persistables": (Model.persistables, Model.load_persistables),
    "save_persistables, read as a state": (Model.persistables, Model.program_state),
    "one file": (
        lambda m, folder: m.persistables(folder, filename="all"),
        lambda m, folder: m.load_persistables(folder, filename="all"),
    ),
    "save_params": (
        lambda m, folder: fluid.io.save_params(m.exe, folder, m.main),
        lambda m, folder: [fluid.io.load_params(m.exe, folder, m.main), m.parameters()][1],
    ),
    "save_inference_model": (Model.inference, Model.load_inference),
    "save_inference_model, one file": (
        lambda m, folder: m.inference(folder, params_filename="__params__"),
        lambda m, folder: m.load_inference(folder, params_filename="__params__"),
    ),
    "save": (lambda m, folder: fluid.save(m.main, f"{folder}/m"), Model.state),
    "save_dygraph": (Model.dygraph, Model.load_dygraph),
    "fleet's checkpoint": (Model.checkpoint, Model.load_checkpoint),
}


@pytest.fixture(scope="module")
def made():
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        return Model(), scope


@pytest.fixture
def model(made):
    with fluid.scope_guard(made[1]):
        yield made[0]


def after_failures(model, how, tmp_path, full):
    """Save over an older save, with a failure at each step in turn; yields (what a load finds
    then, the folder).
    """
    save, load = SAVERS[how]
    for last in itertools.count():
        folder = tmp_path / str(last)
        model.put(1.0)
        save(model, folder)
        (folder / "notes").write_text("of the user")
        model.put(2.0)
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, last, full)
            try:
                save(model, folder)
            except (Killed, OSError) as error:
                if not isinstance(error, Killed):
                    assert error.errno == errno.ENOSPC and str(folder) in str(error)
        model.put(0.0)
        yield load(model, folder), folder
        shutil.rmtree(folder)
        if not disk.failed:
            assert last > 5
            return


@pytest.mark.parametrize("how", SAVERS)
def test_a_save_is_killed(model, how, tmp_path):
    """At any step: a load finds one of the two saves, whole; the next save clears what is left."""
    save, load = SAVERS[how]
    found = []
    for values, folder in after_failures(model, how, tmp_path, full=False):
        assert values in ({1.0}, {2.0}), found
        found.append(values)
        model.put(3.0)
        save(model, folder)
        model.put(0.0)
        assert load(model, folder) == {3.0} and left_in(folder) == []
        assert (folder / "notes").read_text() == "of the user"
    assert found == sorted(found, key=min) and found[0] == {1.0} and found[-1] == {2.0}


@pytest.mark.parametrize("how", SAVERS)
def test_the_disk_is_full(model, how, tmp_path):
    """At any step: the error names a file, and the old save stays, or the new one is whole; nothing
    else is left.
    """
    for values, folder in after_failures(model, how, tmp_path, full=True):
        assert values in ({1.0}, {2.0})
        left = left_in(folder)
        assert left == [] or (values == {2.0} and set(left) == {".jfluid-saved"})


@pytest.mark.parametrize("how", ["save_persistables", "save_inference_model", "save"])
def test_bytes_do_not_fit(model, how, tmp_path):
    """The system takes no more bytes of a file, as a full disk would not."""
    save, load = SAVERS[how]
    model.put(1.0)
    save(model, tmp_path)
    model.put(2.0)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        with pytest.raises(OSError, match=rf"too large: '{tmp_path}/\w+") as error:
            save(model, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert error.value.errno == errno.EFBIG and left_in(tmp_path) == []
    assert load(model, tmp_path) == {1.0}


NAMES = ("a", "b", "encoder/c", "encoder/deep/d")


def write(folder, text, names=NAMES):
    with file_sets.saving(folder) as files:
        for name in names:
            with files.open(name) as file:
                file.write(text)


def read(folder):
    def contents(files):
        paths = [files.path(name) for name in NAMES]
        try:
            return [Path(path).read_bytes() for path in paths]
        except FileNotFoundError as error:
            raise errors.NoSuchFileError(str(error)) from error

    return file_sets.read_whole(folder, contents)


def test_savers_and_readers_at_once(tmp_path):
    """Several savers in one folder: readers find files of one save, and each save succeeds."""
    write(tmp_path, b"first")
    ended, wrong, failed = threading.Event(), [], []

    def save(number):
        try:
            for i in range(25):
                write(tmp_path, b"%d of %d" % (i, number))
        except BaseException as error:
            failed.append(error)

    def look():
        while not ended.is_set():
            found = read(tmp_path)
            if len(set(found)) > 1:
                wrong.append(found)

    readers = [threading.Thread(target=look) for _ in range(2)]
    savers = [threading.Thread(target=save, args=[n]) for n in range(3)]
    for thread in readers + savers:
        thread.start()
    for thread in savers:
        thread.join()
    ended.set()
    for thread in readers:
        thread.join()
    assert not failed and not wrong and len(set(read(tmp_path))) == 1
    assert left_in(tmp_path) == []


def pending(folder, text=b"new"):
    """A save over an older one, killed right after its files became those of the folder."""
    write(folder, b"old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_sets, "finish", killed_at_the_second(file_sets.finish))
        with pytest.raises(Killed):
            write(folder, text)


def killed_at_the_second(function):
    calls = itertools.count()

    def called(folder):
        if next(calls):
            raise Killed
        return function(folder)

    return called


def test_readers_change_nothing_and_need_no_rights(tmp_path):
    pending(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert read(tmp_path) == [b"new"] * 4 and sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "a").read_bytes() == b"old"  # for others than jfluid, until the next save
    assert file_sets.Files(tmp_path).names() == sorted(NAMES)


def test_another_file_is_saved_after_a_killed_save(tmp_path):
    """It is the newer one, and stays so."""
    pending(tmp_path)
    write(tmp_path, b"newest", ["a"])
    assert read(tmp_path) == [b"newest", *[b"new"] * 3] and left_in(tmp_path) == []


def test_files_of_earlier_releases_are_passed_over(model, tmp_path):
    model.put(1.0)
    model.persistables(tmp_path)
    (tmp_path / ".fc_0.w_0.ab12_xyz.tmp").write_bytes(b"")
    (tmp_path / ".fc_0.w_0.0123456789abcdef.tmp").write_bytes(b"")
    assert set(fluid.load_program_state(str(tmp_path))) == set(model.names)


def test_a_save_that_goes_on_is_left_alone(tmp_path):
    with file_sets.saving(tmp_path) as files:
        with files.open("a") as file:
            file.write(b"first")
        write(tmp_path, b"second")
        with files.open("b") as file:
            file.write(b"first")
    assert read(tmp_path) == [b"first"] * 2 + [b"second"] * 2


def test_a_folder_has_the_name(tmp_path):
    write(tmp_path, b"old")
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError, match=f"{tmp_path}/x"):
        write(tmp_path, b"new", [*NAMES, "x"])
    assert read(tmp_path) == [b"old"] * 4 and left_in(tmp_path) == []


def test_links_lead_no_file_out_of_the_folder(tmp_path):
    """A folder from elsewhere may have a .jfluid-saved, and links."""
    outside, folder = tmp_path / "outside", tmp_path / "model"
    pending(folder)
    outside.mkdir()
    shutil.rmtree(folder / "encoder")
    (folder / "encoder").symlink_to(outside)
    with pytest.raises(errors.FileFormatError, match="a link in .* would lead its files out"):
        write(folder, b"newest", ["a"])
    assert list(outside.iterdir()) == []


def test_a_link_in_place_of_a_killed_save(tmp_path):
    """It is none: nothing is read from where it leads, or moved from there."""
    write(tmp_path / "model", b"old")
    write(tmp_path / "outside", b"of others")
    (tmp_path / "model" / ".jfluid-saved").symlink_to(tmp_path / "outside")
    assert read(tmp_path / "model") == [b"old"] * 4
    with pytest.raises(OSError, match="jfluid-saved"):
        write(tmp_path / "model", b"new")
    assert read(tmp_path / "outside") == [b"of others"] * 4
    assert read(tmp_path / "model") == [b"old"] * 4


def test_in_a_folder_of_all_users_others_save_for_themselves(tmp_path, monkeypatch):
    """As in /tmp: who could not replace a file cannot have another one read in its place."""
    pending(tmp_path)
    tmp_path.chmod(0o1777)
    whose = {tmp_path: 1001, tmp_path / ".jfluid-saved": 1002}

    def owned(function, path, *given, **more):
        found = function(path, *given, **more)
        if Path(str(path)) not in whose:
            return found
        return os.stat_result([*found[:4], whose[Path(path)], *found[5:]])

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, functools.partial(owned, getattr(os, name)))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert read(tmp_path) == [b"old"] * 4
    whose[tmp_path / ".jfluid-saved"] = 1000
    assert read(tmp_path) == [b"new"] * 4


def test_files_keep_their_permissions(tmp_path):
    write(tmp_path, b"old")
    (tmp_path / "a").chmod(0o600)
    write(tmp_path, b"new")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_folder_that_changes_all_the_time(tmp_path):
    write(tmp_path, b"0")

    def changing(files):
        files.path("a")
        write(tmp_path, b"1", ["a"])

    with pytest.raises(errors.FileFormatError, match="in each of 100 reads a different process saved"):
        file_sets.read_whole(tmp_path, changing)


def test_the_parameters_have_the_name_of_the_program(model, tmp_path):
    model.put(1.0)
    with pytest.raises(errors.FileFormatError, match="params_filename: m is the name of the prog"):
        model.inference(tmp_path, model_filename="m", params_filename="m")
