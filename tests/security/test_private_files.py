"""Files and folders that only this user may use: how they are made, and what is read of them."""

import ast
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import pytest

import jfluid as fluid
from jfluid import errors, profiler
from jfluid.caches import compiled_kernels, kept_files
from jfluid.compat.dataset import common
from jfluid.security import private_files
from tests import import_graph

# What makes files with the user's own umask, and why they are not private.
SHARED = {
    "check_device.report": "a report that the user asked for",
    "check_device.trainer": "in a temporary folder",
    "ir.graph": "a drawing that the user asked for",
    "command.install_alias": "a package, for whoever uses the environment",
    "command.demo": "examples, which are public",
    "command.limited_run": "in a temporary folder of the doctor",
    "compat.dataset.common": "public data, and samples that the user splits",
    "compat.dataset.image": "beside an archive of the user's",
    "compat.dataset.uci_housing": "pictures that the user asked for",
    "compat.inference.predictor": "in a temporary folder",
    "compat.utils.preprocess_util": "beside the user's images",
    "distributed.saving_operators": "folders of models, which are for sharing, as in Fluid",
    "doctor.trial": "in a temporary folder",
    "dygraph.checkpoint": "folders of models",
    "files.file_sets": "models",
    "files.storage": "models",
    "files.variables": "folders of models",
    "fleet.numbered_checkpoints": "models",
    "fleet.filesystem": "what the user copies",
    "fleet.fleet_util": "program files that the user asked for",
    "fleet.hdfs": "what the user copies",
    "launch.output": "writes to the launcher's own streams",
    "security.private_files": "the functions that give a mode",
    "ps_server.table": "touches rows",
    "security.secret": "gives its own mode",
    "security.snapshot_owner": "gives its own mode",
}


@pytest.fixture
def another(monkeypatch):
    """Gives a file or folder to another user."""

    def give(path):
        if os.geteuid() == 0:
            os.chown(path, 65534, -1, follow_symlinks=False)
        else:  # then all files are
            user = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    return give


@pytest.fixture
def cache(tmp_path):
    """A cache's folder, as FLAGS_compilation_cache_dir names it, with a file in it."""
    before = fluid.get_flags("FLAGS_compilation_cache_dir"), jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    folder = tmp_path / "cache"
    fluid.set_flags({"FLAGS_compilation_cache_dir": str(folder)})
    private_files.make_folder(folder)
    kept_files.write(folder / "step-1", b"kept", 9)
    yield folder
    fluid.set_flags(before[0])
    jax.config.update("jax_compilation_cache_dir", before[1])


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def writes(node):
    """Whether a call makes a file or a folder, with the process's umask unless it says otherwise."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in ("mkdir", "makedirs", "write_text", "write_bytes", "touch", "copytree", "copyfile"):
        return True
    if name != "open" or any(keyword.arg == "opener" for keyword in node.keywords):
        return False
    texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    opened = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return "O_CREAT" in opened or any(set(text) & set("wax") for text in texts if len(text) < 4)


def test_each_module_that_makes_files_says_for_whom():
    found = set()
    for path in import_graph.PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(import_graph.PACKAGE).with_suffix("").parts)
        for node in import_graph.nodes(path):
            if isinstance(node, ast.Call) and writes(node):
                found.add(module.removesuffix(".__init__"))
    assert found - {"profiler"} == set(SHARED) & found
    assert "profiler" in found  # copies into a folder of `own_folder`


# What can act when it is read from a file, and why it may be where it is.
READ = {
    "profiler": "CUDA's runtime library, of the system or of an installed package",
    "feeding.worker": "loads from a pipe of its own child",
    "compat.dataset.common": "loads data alone, or files of `open_trusted`",
    "compile.runtime.executable_cache": "loads what kept_files.read gives",
    "caches.compiled_kernels": "checks Numba's cache",
    "ops.shape_cache": "loads what kept_files.read gives",
    "machine_code.llvm_writer": "links what kept_files.read gives, or what it has just made",
    "host.heap": "calls the C library",
    "launch.devices": "calls the CUDA driver",
    "compat.utils.image_util": "np.load without pickles",
    "serving.application": "np.load without pickles",
    "serving.blocks": "calls the C library",
    "files.pickled": "a pickler",
    "files.unpickling": "runs no function of a pickle",
}


def acts(node):
    """Whether a call or a class may run what it reads."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).endswith(("Unpickler",)) for base in node.bases)
    text = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return text in (
        "pickle.load",
        "pickle.loads",
        "pickle.Unpickler",
        "marshal.load",
        "marshal.loads",
        "np.load",
        "ctypes.CDLL",
        "serialize_executable.deserialize_and_load",
        "llvm.ObjectFileRef.from_data",
        "joblib.load",
        "njit",
        "enable_caching",
        "torch.load",
        "shelve.open",
    )


def test_each_module_that_reads_what_can_act_says_from_where():
    found = set()
    for path in import_graph.PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(import_graph.PACKAGE).with_suffix("").parts)
        if any(acts(node) for node in import_graph.nodes(path)):
            found.add(module.removesuffix(".__init__"))
    assert found <= set(READ), found - set(READ)
    assert {"compile.runtime.executable_cache", "ops.shape_cache", "host.heap"} <= found


def test_nothing_sets_the_umask_of_the_process():
    users = [
        path
        for path in import_graph.PACKAGE.rglob("*.py")
        for node in import_graph.nodes(path)
        if isinstance(node, ast.Attribute) and node.attr == "umask"
    ]
    assert users == []


MADE = """
import json, os, sys
from pathlib import Path
import numpy as np
import jfluid as fluid
from jfluid import profiler
from jfluid.caches import kept_files
from jfluid.files.storage import atomic_write
from jfluid.launch.logs import Log
from jfluid.ps_server import snapshot, specs
from jfluid.ps_server.store import Store
from jfluid.security import secret

store = Store()
store.create([], [specs.BlockSpec(
    name="w", shape=(2,), initializer=specs.Constant(value=0), optimizer=specs.Sgd(learning_rate=1)
)])
with store.view() as view:
    snapshot.write(view, "new/snapshots", "one", 0, 1)
Log(Path("jobs/log/workerlog.0"), False, 1000, 1, print).close()
secret.of_this_user()
with atomic_write("model/w") as file:
    file.write(b"1")
os.chmod("model/w", 0o640)
with atomic_write("model/w") as file:
    os.makedirs("seen"); os.link(*Path("model").glob(".jfluid-saving-*/w"), "seen/tmp")
fluid.set_flags({"FLAGS_compilation_cache_dir": "kept/xla"})
kept_files.folder_for_jax(); kept_files.write(kept_files.folder() / "step-1", b"1", 3)
with profiler.profiler("CPU", profile_path="profile"):
    pass
found = {}
for at, folders, names in os.walk("."):
    for name in (*folders, *names):
        found[os.path.relpath(os.path.join(at, name))] = oct(os.lstat(os.path.join(at, name)).st_mode & 0o777)
print(json.dumps(found))
"""


@pytest.mark.process
def test_what_may_hold_data_or_secrets_is_this_users_whatever_the_umask(tmp_path):
    """Models keep the umask: they are for sharing. What lies in a closed folder is closed."""
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MADE],
        cwd=tmp_path,
        env={
            **{k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"},
            "XDG_CACHE_HOME": str(tmp_path / "home"),
        },
        capture_output=True,
        text=True,
        umask=0,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    modes = json.loads(made.stdout.splitlines()[-1])
    assert modes.pop("model") == "0o777" and modes.pop("model/w") == "0o640"
    for name in ("seen", "seen/tmp"):
        modes.pop(name)
    folders = {name for name in modes if (tmp_path / name).is_dir()}
    for top in ("new", "new/snapshots", "jobs", "jobs/log", "home/jfluid", "kept/xla", "profile"):
        assert modes[top] == "0o700", (top, modes)
    files = {n: m for n, m in modes.items() if n not in folders and not n.startswith("profile/")}
    assert len(files) >= 5 and set(files.values()) == {"0o600"}, files


def test_new_files_are_private_and_others_keep_their_mode(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(0o755)
    private_files.make_folder(shared / "a" / "b")
    assert [mode(p) for p in (shared, shared / "a", shared / "a/b")] == [0o755, 0o700, 0o700]
    for name in ("new", "old"):
        if name == "old":
            (shared / name).touch(0o644)
        with open(shared / name, "wb", opener=private_files.create) as file:
            file.write(b"1")
    assert mode(shared / "new") == 0o600 and mode(shared / "old") == 0o644


# ---- what is read --------------------------------------------------------------------------------


def test_a_cache_of_this_user_is_read(cache):
    assert kept_files.folder() == cache == kept_files.folder_for_jax()
    assert kept_files.read(cache / "step-1") == b"kept"


def passed_over(cache, match):
    with pytest.warns(RuntimeWarning, match=match) as said:
        assert kept_files.folder() is None and kept_files.folder_for_jax() is None
    assert len({str(warning.message) for warning in said}) == 1
    assert "FLAGS_compilation_cache_dir" in str(said[0].message)
    with warnings.catch_warnings():  # it was said
        warnings.simplefilter("error")
        assert kept_files.folder() is None and kept_files.read(cache / "step-1") is None


@pytest.mark.parametrize("wide", (0o777, 0o770, 0o707, 0o1777))
def test_a_cache_that_others_may_write_to_is_passed_over(cache, wide):
    cache.chmod(wide)
    passed_over(cache, f"{cache}: others can write to the folder.*{wide:o}; run chmod go-w")


def test_a_cache_below_a_folder_that_others_may_write_to_is_passed_over(cache):
    cache.parent.chmod(0o777)
    passed_over(cache, f"{cache.parent}: others can write")


def test_a_sticky_folder_above_is_trusted(cache):
    cache.parent.chmod(0o1777)
    assert kept_files.folder() == cache


def test_a_cache_of_another_user_is_passed_over(cache, another):
    another(cache)
    passed_over(cache, "belongs to user")


def test_the_folder_that_a_link_leads_to_counts(cache):
    link = cache.parent / "link"
    link.symlink_to(cache)
    fluid.set_flags({"FLAGS_compilation_cache_dir": str(link)})
    assert kept_files.folder() == kept_files.folder_for_jax() == cache


@pytest.mark.parametrize("wide", (0o620, 0o602, 0o666))
def test_a_kept_file_that_others_may_write_to_is_passed_over(cache, wide):
    (cache / "step-1").chmod(wide)
    with pytest.warns(RuntimeWarning, match="others can write to the file"):
        assert kept_files.read(cache / "step-1") is None


def test_a_kept_file_of_another_user_is_passed_over(cache, another):
    kept_files.folder()
    another(cache / "step-1")
    with pytest.warns(RuntimeWarning, match="the file belongs to user"):
        assert kept_files.read(cache / "step-1") is None


def test_a_link_among_kept_files_is_passed_over(cache):
    (cache / "step-2").symlink_to(cache / "step-1")
    with pytest.warns(RuntimeWarning, match="found a link"):
        assert kept_files.read(cache / "step-2") is None


def test_a_file_of_another_user_in_the_cache_of_jax_keeps_jax_from_it(cache, another):
    cache.chmod(0o755)
    planted = cache / "jit_step-cache"
    planted.touch(0o664)
    planted.chmod(0o664)
    with pytest.warns(RuntimeWarning, match="jit_step-cache: others can write"):
        assert kept_files.folder_for_jax() is None
    cache.chmod(0o700)  # then nobody reaches it
    assert kept_files.folder_for_jax() == cache
    another(planted)
    with pytest.warns(RuntimeWarning, match="jit_step-cache: .*belongs to user|belongs to user"):
        assert kept_files.folder_for_jax() is None


@pytest.fixture
def numba_cache(tmp_path, monkeypatch):
    """The folder in which Numba keeps what it compiles of a module, and the module's function."""
    from numba.core import config

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "numba"))
    source = tmp_path / "source" / "made.py"
    source.parent.mkdir()
    source.write_text("def twice(x):\n    return 2 * x\n")
    space = {"__name__": "made"}
    exec(compile(source.read_text(), str(source), "exec"), space)

    def made():
        compiled_kernels._is_trusted.cache_clear()
        return compiled_kernels.kernel()(space["twice"])

    first = made()  # what is read from the folder needs its globals, which Numba keeps as long as a function lives
    assert first(4) == 8
    (folder,) = (tmp_path / "numba").iterdir()
    yield folder, made
    compiled_kernels._is_trusted.cache_clear()


@pytest.mark.parametrize("wide", ["", "folder", "file"])
def test_numbas_kernels_are_read_where_nobody_else_can_have_written_them(numba_cache, wide):
    folder, made = numba_cache
    assert list(folder.glob("*.nbi"))
    folder.chmod(0o777 if wide == "folder" else 0o755)
    for file in folder.iterdir():
        file.chmod(0o666 if wide == "file" else 0o644)
    if not wide:
        again = made()
        assert again(4) == 8 and sum(again.stats.cache_hits.values()) == 1
        return
    with pytest.warns(RuntimeWarning, match=f"others can write to the {wide}.*NUMBA_CACHE_DIR"):
        again = made()
    assert again(4) == 8 and not again.stats.cache_hits


class Evil:
    """A pickle that would run."""

    def __reduce__(self):
        return (os.mkdir, ("ran",))


def test_pickles_of_others_are_not_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.pickle").write_bytes(pickle.dumps([Evil()]))
    read = common.cluster_files_reader("*.pickle", 1, 0, loader=pickle.load)
    for path, wide in ((tmp_path / "0.pickle", 0o666), (tmp_path, 0o777)):
        before = mode(path)
        path.chmod(wide)
        with pytest.raises(errors.NotPrivateError, match="others can write"):
            list(read())
        path.chmod(before)
    assert not (tmp_path / "ran").exists()
    list(read())
    assert (tmp_path / "ran").exists()


# ---- what is written where others could have been ------------------------------------------------


def test_a_trace_goes_only_into_a_folder_of_this_user(tmp_path, another):
    (tmp_path / "mine").mkdir(0o755)
    with profiler.profiler("CPU", profile_path=str(tmp_path / "mine")):
        pass
    assert mode(tmp_path / "mine") == 0o755 and list((tmp_path / "mine").iterdir())
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    before = sorted((tmp_path / "mine").rglob("*"))
    for name, problem in (("wide", "others can write"), ("link", "belongs to user")):
        if name == "link":
            another(tmp_path / name)
        with (
            pytest.raises(errors.NotPrivateError, match=f"{name}: .*{problem}") as said,
            profiler.profiler("CPU", profile_path=str(tmp_path / name)),
        ):
            pass
        trace = str(said.value).partition("The trace is in ")[2].partition(";")[0]
        assert list(Path(trace).rglob("*.xplane.pb"))
        shutil.rmtree(trace)
    assert sorted((tmp_path / "mine").rglob("*")) == before
