"""The built wheel in an environment of its own: the commands run without a checkout.

Libraries come from the environment of the tests, since tests use no network; jfluid itself comes from the wheel alone.
"""

import json
import os
import shutil
import site
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "models" / "separate"
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, built in a copy of the checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("jfluid", "examples", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "-w",
            target,
            source,
        ]
    )
    (wheel,) = target.glob("jfluid-*.whl")
    return wheel


@pytest.fixture(scope="module")
def commands(built, tmp_path_factory):
    """The folder of the commands of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    bin_folder = folder / "bin"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        bin_folder / "python",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-compile",
    ]
    run([*install, built])
    (packages,) = (folder / "lib").glob("python3.*/site-packages")
    # libraries alone: files of paths in that folder, such as that of an editable install, are not read
    (packages / "libraries.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return bin_folder


def clean():
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "JFLUID", "VIRTUAL_ENV"))}


def run(command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900, env=clean(), **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_jfluid_is_the_wheels(commands, tmp_path):
    text = "import jfluid; print(jfluid.__file__)"
    assert str(commands.parent) in run([commands / "python", "-c", text], cwd=tmp_path)
    assert "jfluid" in run([commands / "jfluid", "--version"], cwd=tmp_path)


def test_what_the_wheel_holds(built):
    with zipfile.ZipFile(built) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode()
    tracked = subprocess.run(["git", "ls-files", "jfluid"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    expected = {name for name in tracked if not name.endswith(".md")}
    assert expected <= set(names), expected - set(names)
    assert any(name.endswith("share/jfluid/examples/ctr_dnn.py") for name in names)
    assert any("licenses/LICENSE" in name for name in names)
    assert any(name.endswith("share/jfluid/CHANGELOG.md") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]
    assert "Requires-Python: >=3.11" in metadata and "Description-Content-Type: text/markdown" in metadata


@pytest.mark.nightly  # tests/examples/test_demo.py runs the demo, the tests below the wheel
def test_the_demo_trains_and_draws(commands, tmp_path):
    run(
        [commands / "jfluid", "demo", "word2vec", "--set", "args.epochs=1", "--folder", tmp_path / "demo"], cwd=tmp_path
    )
    assert list((tmp_path / "demo").rglob("words.png"))


def test_the_doctor_and_inspect_read(commands, tmp_path):
    (tmp_path / "train.py").write_text("import paddle.fluid as fluid\nx = fluid.data('x', [None, 4])\n")
    assert "runs as it is" in run([commands / "jfluid", "doctor", "train.py"], cwd=tmp_path)
    assert "conv2d" in run([commands / "jfluid", "inspect", GOLDEN, "--html", tmp_path / "m.html"], cwd=tmp_path)
    assert (tmp_path / "m.html").stat().st_size > 4000


def test_a_script_runs_as_it_is(commands, tmp_path):
    script = (
        "import paddle.fluid as fluid\nprint(fluid.__name__, fluid.layers.fc(fluid.data('x', [None, 4]), 2).shape)\n"
    )
    (tmp_path / "train.py").write_text(script)
    assert "(-1, 2)" in run([commands / "jfluid", "run", "train.py"], cwd=tmp_path)


def test_the_server_answers(commands, tmp_path):
    command = [str(commands / "jfluid"), "serve", str(GOLDEN), "--port", "0", "--max-batch", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=clean())
    try:
        address = process.stdout.readline().split(" at ")[1].strip()
        until = time.monotonic() + 300
        while True:
            try:
                with urllib.request.urlopen(f"{address}/v2/models/separate", timeout=300) as answer:
                    described = json.load(answer)
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.1)
        assert described["inputs"][0]["name"] == "image"
    finally:
        process.terminate()
        process.wait(300)
        process.stdout.close()
