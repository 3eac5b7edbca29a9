"""Of fluid.contrib: decoupled weight decay, statistics of programs, HDFS; and other small names."""

import importlib
import os
import stat

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ops.selected_rows import SelectedRows
from tests.op_case import check

START = np.array([[1.0], [2.0]], "float32")


def net():
    x = fluid.data("x", [2, 2])
    initial = fluid.initializer.NumpyArrayInitializer(START)
    attrs = [fluid.ParamAttr(name=n, initializer=initial) for n in ("w", "v")]
    return fluid.layers.mean(fluid.layers.fc([x, x], 1, param_attr=attrs, bias_attr=False))


def updated(optimizer):
    optimizer.minimize(net())
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe.run(feed={"x": np.ones((2, 2), "float32")}, fetch_list=["w", "v"])


def test_the_decay_is_no_part_of_the_gradient():
    decayed = fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.Momentum)
    optimizer = decayed(0.1, lambda name: name == "w", learning_rate=0.5, momentum=0.9)
    w, v = updated(optimizer)
    np.testing.assert_allclose(w, START - 0.1 * START - 0.5, rtol=1e-6)
    np.testing.assert_allclose(v, START - 0.5, rtol=1e-6)
    assert str(optimizer) == "Weight Decay, params: w"


def test_a_decay_that_is_a_variable_or_none():
    sgd = fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.SGD)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        w, _ = updated(sgd(0.0, learning_rate=0.5))
        np.testing.assert_allclose(w, START - 0.5, rtol=1e-6)
    rate = fluid.layers.fill_constant([1], "float32", 0.2)
    w, _ = updated(sgd(rate, learning_rate=0.5))
    np.testing.assert_allclose(w, 0.8 * START - 0.5, rtol=1e-6)


def test_what_does_not_decay():
    extend = fluid.contrib.extend_with_decoupled_weight_decay
    with pytest.raises(TypeError, match="class of optimizers"):
        extend(fluid.optimizer.SGD(0.1))
    with pytest.raises(TypeError, match="float or a Variable"):
        extend(fluid.optimizer.SGD)("0.1", learning_rate=0.1)
    wrong = fluid.layers.fill_constant([1], "float64", 0.2)
    with pytest.raises(TypeError, match="Variable of FP32"):
        extend(fluid.optimizer.SGD)(wrong, learning_rate=0.1).minimize(net())


def test_memory_usage():
    x = fluid.data("x", [None, 256])
    program = fluid.default_main_program()
    fluid.layers.scale(x)
    assert fluid.contrib.memory_usage(program, 3) == (3 * 1.05, 3 * 1.1, "KB")
    fluid.layers.fill_constant([2, 1024, 1024], "int64", 1)
    low, high, unit = fluid.contrib.memory_usage(program, 1)
    assert (low, high) == pytest.approx((1.05 * 16.000977, 1.1 * 16.000977)) and unit == "MB"
    fluid.layers.scale(fluid.data("y", [None, None]))
    with pytest.raises(ValueError, match="several unknown"):
        fluid.contrib.memory_usage(program, 1)
    with pytest.raises(ValueError, match="1 or more"):
        fluid.contrib.memory_usage(program, 0)
    with pytest.raises(TypeError, match="expected a Program"):
        fluid.contrib.memory_usage("program", 1)


def test_op_freq_statistic():
    x = fluid.data("x", [2])
    y = fluid.layers.relu(fluid.layers.scale(fluid.layers.scale(x)))
    fluid.layers.elementwise_add(y, y)
    single, pairs = fluid.contrib.op_freq_statistic(fluid.default_main_program())
    assert single == [("scale", 2), ("relu", 1), ("elementwise_add", 1)]
    assert pairs[0] == ("relu->elementwise_add", 2)
    assert set(pairs[1:]) == {("scale->scale", 1), ("scale->relu", 1)}


def test_summary(capsys):
    layers = fluid.layers
    x = layers.conv2d(fluid.data("x", [None, 3, 32, 32]), 8, 3, padding=1, act="relu")
    x = layers.batch_norm(layers.pool2d(x, 2, "max", 2))
    x = layers.conv2d(x, 16, 3, padding=1, groups=2, bias_attr=False)
    x = layers.pool2d(layers.prelu(x, "channel"), global_pooling=True)
    layers.dropout(layers.fc(x, 10), 0.5)
    importlib.import_module("jfluid.contrib.model_stat").summary(fluid.default_main_program())
    lines = capsys.readouterr().out.splitlines()
    assert [line[2:-2].split(" | ") for line in (lines[1], lines[3])] == [
        ["No.", "      TYPE", "       INPUT", "      OUTPUT", "PARAMs", " FLOPs"],
        ["  0", "    conv2d", " (3, 32, 32)", " (8, 32, 32)", "   216", "442368"],
    ]
    found = [line.replace(" ", "").split("|")[2:7] for line in lines[4:-4]]
    assert [[one[0], *one[3:]] for one in found] == [
        ["relu", "0", "8192"],
        ["pool2d", "0", "8192"],
        ["batch_norm", "16", "4096"],
        ["conv2d", "576", "294912"],
        ["prelu", "16", "4096"],
        ["pool2d", "0", "4096"],
        ["mul", "160", "320"],
    ]
    assert lines[-3:-1] == ["Total PARAMs: 984 (0.0010M)", "Total FLOPs: 766272 (0.00G)"]
    with pytest.raises(TypeError, match="expected a Program"):
        fluid.contrib.summary("program")


# What stands for Hadoop's command: it moves files below the folder that its setting names.
HADOOP = """#!/bin/sh
root="${2#-Droot=}"
command="$3"
shift 3
case "$command" in
-test) test "$1" "$root$2" ;;
-ls)
    depth=1
    if [ "$1" = -R ]; then depth=9; shift; fi
    find "$root$1" -mindepth 1 -maxdepth $depth | sort | while read -r path; do
        kind=-; if [ -d "$path" ]; then kind=d; fi
        echo "${kind}rw-r--r-- 1 me me 1 2020-01-01 00:00 ${path#"$root"}"
    done ;;
-mkdir) mkdir -p "$root$2" ;;
-put) cp "$1" "$root$2" ;;
-get) cp "$root$1" "$2" ;;
-cat) cat "$root$1" ;;
-mv) mv "$root$1" "$root$2" ;;
-rm) rm -r "$root$2" ;;
*) exit 1 ;;
esac
"""


@pytest.fixture(params=["command", "fsspec"])
def configured(request, tmp_path):
    """(hadoop_home, configs) of an empty file system, by each of both ways."""
    root = tmp_path / "cluster"
    root.mkdir()
    if request.param == "fsspec":
        return str(tmp_path), {"fs.default.name": f"file://{root}"}
    command = tmp_path / "bin" / "hadoop"
    command.parent.mkdir()
    command.write_text(HADOOP)
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return str(tmp_path), {"root": root}


@pytest.mark.process
def test_hdfs(configured, tmp_path):
    client = fluid.contrib.HDFSClient(*configured)
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (here / name).write_text(f"text of {name}")
    fluid.contrib.multi_upload(client, "/data", str(here))
    assert client.ls("/data") == ["/data/a", "/data/b", "/data/sub"] and client.ls("/none") == []
    assert client.lsr("/data") == ["/data/a", "/data/b", "/data/sub/c"]
    assert "/data/sub" in client.lsr("/data", only_file=False)
    assert client.is_dir("/data/sub") and not client.is_dir("/data/a") and client.is_exist("/data/a")
    assert client.cat("/data/sub/c") == "text of sub/c" and client.cat("/none") == ""
    copies = str(tmp_path / "copies")
    shares = [fluid.contrib.multi_download(client, "/data", copies, i, 2) for i in (0, 1)]
    assert shares == [[f"{copies}/a", f"{copies}/sub/c"], [f"{copies}/b"]]
    assert (tmp_path / "copies" / "sub" / "c").read_text() == "text of sub/c"
    assert not client.download("/data/a", copies) and client.download("/data/a", copies, True)
    assert not client.upload("/data", str(here / "a")) and client.upload("/data", str(here / "a"), True)
    assert client.rename("/data/a", "/data/moved") and not client.rename("/data/a", "/data/b")
    assert not client.rename("/data/moved", "/data/b") and client.rename("/data/moved", "/data/b", True)
    assert client.cat("/data/b") == "text of a"
    assert client.delete("/data") and client.delete("/data") and not client.is_exist("/data")
    with pytest.raises(FileNotFoundError):
        client.upload("/data", str(here))


@pytest.mark.process
def test_hdfs_of_fleet(configured, tmp_path):
    from jfluid.incubate.fleet.utils.hdfs import HDFSClient

    client = HDFSClient(*configured)
    here, copies = tmp_path / "here", str(tmp_path / "copies")
    (here / "sub").mkdir(parents=True)
    for name in ("a.txt", "sub/b.log"):
        (here / name).write_text(name)
    assert client.upload("/data", str(here), multi_processes=2)
    assert client.lsr("/data", excludes=["*.log"]) == ["/data/a.txt"]
    assert client.download("/data", copies) and not client.download("/data", copies)
    assert client.download("/data", copies, overwrite=True) and not client.upload_dir("/data", str(here))
    assert (tmp_path / "copies" / "sub" / "b.log").read_text() == "sub/b.log"
    assert HDFSClient.split_files(["x", "y", "z"], 1, 2) == ["y"] and client.is_file("/data/a.txt")


def test_hdfs_without_a_command_needs_an_address(tmp_path):
    with pytest.raises(errors.UnsupportedError, match=r"fs\.default\.name"):
        fluid.contrib.HDFSClient(str(tmp_path), {})
    with pytest.raises(TypeError, match="HDFSClient"):
        fluid.contrib.multi_upload(None, "/a", "b")


@pytest.mark.process
def test_a_failing_command_says_why(tmp_path):
    command = tmp_path / "bin" / "hadoop"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho no cluster >&2\nexit 1\n")
    command.chmod(0o755)
    client = fluid.contrib.HDFSClient(str(tmp_path), {})
    assert not client.is_exist("/a") and client.last_error == "no cluster\n"
    assert not client.upload("/a", str(command), retry_times=0) and client.ls("/a") == []


@pytest.mark.process
def test_a_download_that_is_cut_off_is_tried_again_and_never_counts(tmp_path):
    """Hadoop's command ends with 255 where the cluster fails, and leaves half of the file."""
    command = tmp_path / "bin" / "hadoop"
    command.parent.mkdir()
    command.write_text(
        f"""#!/bin/sh
case "$2" in
-test) test "$3" = -e ;;
-get)
    echo x >> {tmp_path}/tries
    if [ -e "$4" ]; then exit 1; fi
    echo half > "$4"
    if [ $(wc -l < {tmp_path}/tries) -lt 3 ]; then exit 255; fi
    echo whole >> "$4" ;;
esac
"""
    )
    command.chmod(0o755)
    client = fluid.contrib.HDFSClient(str(tmp_path), {})
    copies = tmp_path / "copies"
    assert not client.download("/data/a", str(copies), retry_times=1)
    assert list(copies.iterdir()) == []
    (tmp_path / "tries").unlink()
    assert client.download("/data/a", str(copies), retry_times=2)
    assert [path.name for path in copies.iterdir()] == ["a"]
    assert (copies / "a").read_text() == "half\nwhole\n"


def test_names_of_transpilers_and_trainers(capsys):
    from jfluid.transpiler.distribute_transpiler import log, same_or_split_var, slice_variable

    w = fluid.default_main_program().global_block().create_parameter(name="w", shape=[100, 30], dtype="float32")
    assert slice_variable([w], 2, 1000) == ["w:0:1500", "w:1:1500"]
    assert slice_variable([w], 3, 8192) == ["w:0:3000"]
    assert same_or_split_var("w.block0", "w") and not same_or_split_var("wide", "w")
    log("quiet")
    trainer = fluid.MultiTrainer()
    trainer._set_thread(3)
    trainer._set_debug(True)
    trainer._set_loss_names(["loss"])
    trainer._set_fetch_var_and_info([w], ["weight"], 10)
    desc = trainer.proto_desc
    assert (desc.class_name, desc.thread_num, desc.debug) == ("MultiTrainer", 3, True)
    assert desc.loss_names == ["loss"] and desc.fetch_config.fetch_var_names == ["w"]
    with pytest.raises(errors.UnsupportedError, match="train_from_dataset"):
        trainer._desc()
    assert not hasattr(trainer, "_set_nothing")
    assert fluid.learning_rate_decay.noam_decay is fluid.layers.noam_decay
    assert fluid.check_import_scipy("posix") is None and capsys.readouterr().out == ""


def test_complex_variables():
    real, imag = (fluid.data(n, [2, 3]) for n in ("real", "imag"))
    both = fluid.framework.ComplexVariable(real, imag)
    assert (both.shape, both.dtype) == ((2, 3), "complex64") and "IMAG" in str(both)
    assert both.name == {"real": "real", "imag": "imag"} and fluid.ComplexVariable is type(both)
    with pytest.raises(errors.ShapeError, match="one shape"):
        fluid.ComplexVariable(real, fluid.data("other", [2, 3], "float64"))
    with pytest.raises(TypeError, match="two Variables"):
        fluid.ComplexVariable(real, 1.0)
    with pytest.raises(errors.DygraphError, match="real is a variable of a program"):
        both.numpy()


def test_get_places():
    found = fluid.layers.device.get_places(2, "CPU")
    assert found.type == fluid.core.VarDesc.VarType.PLACE_LIST
    many = fluid.layers.device.get_places()
    exe = fluid.Executor(fluid.CPUPlace())
    places, every = exe.run(feed={}, fetch_list=[found, many])
    assert places.tolist() == [0, 1] and len(every) == os.cpu_count()
    fluid.layers.device.get_places(1, "TPU")
    with pytest.raises(errors.AttributeTypeError, match="CPU, CUDA or AUTO"):
        exe.run(feed={}, fetch_list=[found])


def test_lookup_sparse_table():
    table = np.arange(6, dtype="float32").reshape(3, 2)
    ids = np.array([[2], [0], [7], [1]])
    expected = np.array([[4, 5], [0, 1], [0, 0], [0, 0]], "float32")
    attrs = {"padding_idx": 1}
    check(
        "lookup_sparse_table",
        {"W": table, "Ids": ids},
        attrs,
        expect={"Out": expected},
        rows=["Ids"],
    )
    from jfluid.ops.distributed import lookup_sparse_table

    rows = SelectedRows(np.array([9, 4, 2]), table, 10)
    found = lookup_sparse_table(rows, np.array([4, 9, 3]))
    np.testing.assert_array_equal(found, [[2, 3], [0, 1], [0, 0]])


def test_operators_of_programs_that_fluid_has_divided():
    block = fluid.default_main_program().global_block()
    block.append_op("fl_listen_and_serv", {"X": fluid.data("x", [2, 1])}, {}, {})
    with pytest.raises(errors.UnsupportedError, match="fl_listen_and_serv: it is of programs"):
        fluid.Executor(fluid.CPUPlace()).run(feed={"x": np.ones((2, 1), "float32")})


def divided():
    """A transpiler of a net with a distributed table, and its loss."""
    ids = fluid.data("ids", [None, 1], "int64")
    rows = fluid.embedding(ids, [6, 2], True, True, param_attr=fluid.ParamAttr(name="table"))
    loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.reshape(rows, [-1, 2]), 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, pservers="127.0.0.1:6174,127.0.0.1:6175", trainers=1)
    return transpiler, loss


def saved_table(folder):
    """The rows that two servers have written."""
    from jfluid.ps_server import snapshot
    from jfluid.ps_server.specs import Sgd, TableSpec
    from jfluid.ps_server.store import Store

    rows = np.arange(12, dtype="float32").reshape(6, 2)
    for server in (0, 1):
        store = Store()
        store.create_table(TableSpec(name="table", width=2, optimizer=Sgd(learning_rate=0.1)))
        ids = np.arange(server, 6, 2)
        store.table("table").assign(ids, rows[ids])
        with store.view() as view:
            snapshot.write(view, folder, "a", server, 2)
    return rows


def test_a_program_with_a_distributed_table_without_servers(tmp_path):
    transpiler, loss = divided()
    program = fluid.contrib.convert_dist_to_sparse_program(transpiler.get_trainer_program(False))
    rows = saved_table(tmp_path / "table")
    exe = fluid.Executor(fluid.CPUPlace())
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        weights = {
            n: np.ones(v.shape, "float32")
            for n, v in program.global_block().vars.items()
            if n in ("fc_0.w_0", "fc_0.b_0")
        }
        for name, value in weights.items():
            scope.var(name).get_tensor().set(value)
        some = [program.global_block().var(n) for n in weights]
        fluid.io.save_vars(exe, str(tmp_path), program, vars=some)
    with fluid.scope_guard(fluid.Scope()):
        loaded = fluid.contrib.load_persistables_for_inference(str(tmp_path), exe, program, "table")
        found = exe.run(
            loaded.clone(for_test=True),
            feed={"ids": np.array([[1], [4]])},
            fetch_list=[loss.name],
        )
    assert loaded is program and found[0].item() == rows[[1, 4]].sum() / 2 + 1
    (tmp_path / "fc_0.b_0").unlink()
    with pytest.raises(errors.FileFormatError, match=r"no files of fc_0\.b_0"):
        fluid.contrib.load_persistables_for_inference(str(tmp_path), exe, program, "table")
    with pytest.raises(ValueError, match="there is no folder"):
        fluid.contrib.load_persistables_for_inference("none", exe, program, "table")
    with pytest.raises(errors.ProgramError, match="expected a trainer's program"):
        fluid.contrib.convert_dist_to_sparse_program(fluid.Program())


def test_a_servers_state_is_loaded_with_its_table(tmp_path):
    transpiler, _ = divided()
    server, startup = transpiler.get_pserver_programs("127.0.0.1:6174")
    saved_table(tmp_path / "table")
    exe = fluid.Executor(fluid.CPUPlace())
    load = fluid.contrib.load_persistables_for_increment
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        with pytest.raises(ValueError, match="expected .*table"):
            load(str(tmp_path), exe, server, "table", str(tmp_path))
        with pytest.raises(errors.FileFormatError, match=r"fc_0\."):
            load(str(tmp_path), exe, server, "table", str(tmp_path / "table"))


def test_load_persistables_takes_the_rows_that_servers_saved(tmp_path):
    program, exe, scope = fluid.Program(), fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    with fluid.program_guard(program), fluid.scope_guard(scope):
        ids = fluid.data("ids", [None, 1], "int64")
        read = fluid.embedding(ids, [6, 2], param_attr=fluid.ParamAttr("table"))
        rows = saved_table(tmp_path / "table")
        for load in (fluid.io.load_persistables, fluid.io.load_params):
            load(exe, str(tmp_path), program)
            (found,) = exe.run(program, feed={"ids": np.array([[1], [4]])}, fetch_list=[read])
            np.testing.assert_array_equal(found[:, 0], rows[[1, 4]])
            scope.var("table").get_tensor().set(np.zeros((6, 2), "float32"))
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        ids = fluid.data("ids", [None, 1], "int64")
        fluid.embedding(ids, [6, 3], param_attr=fluid.ParamAttr("table"))
        with pytest.raises(errors.FileFormatError, match=r"table: expected shape \[6, 3\]"):
            fluid.io.load_persistables(exe, str(tmp_path))
    (tmp_path / "other").mkdir()
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        ids = fluid.data("ids", [None, 1], "int64")
        fluid.embedding(ids, [6, 2], param_attr=fluid.ParamAttr("other"))
        with pytest.raises(errors.FileFormatError, match="other: "):
            fluid.io.load_persistables(exe, str(tmp_path))
