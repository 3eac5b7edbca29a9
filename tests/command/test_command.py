"""The command as a whole: its subcommands, versions, completion and colours."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import jfluid as fluid
from jfluid import command, launch
from jfluid.command import completion
from tests import forked
from tests.launch_case import untimed

ROOT = Path(__file__).parents[2]


def run(*arguments, folder, fresh=False, **environment):
    """The command as a process, which is forked, or a new interpreter."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    if not fresh:
        return forked.jfluid(arguments, folder, environment)
    return subprocess.run(
        [sys.executable, "-m", "jfluid", *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_subcommand_is_there_and_in_the_help_and_on_the_page(capsys):
    assert command.main([]) == 0
    shown, page = capsys.readouterr().out, (ROOT / "docs" / "commands.md").read_text()
    for name in command.SUBCOMMANDS:
        assert callable(command.module_of(name).main)
        assert re.search(rf"^  {name} ", shown, re.MULTILINE), name
        assert f"jfluid {name}" in page, name


def test_version(capsys):
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out == (
        f"jfluid {fluid.__version__} (Fluid 1.8.5, JAX {metadata.version('jax')}, Python {sys.version.split()[0]})\n"
    )
    with pytest.raises(SystemExit) as ended:
        launch.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"jfluid {fluid.__version__}\n"


def test_a_word_that_is_no_subcommand_is_named_with_what_is_meant(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    for word, meant in (
        ("lanch", "did you mean launch?"),
        ("train.py", "jfluid run train.py"),
        ("job.yaml", "jfluid launch job.yaml"),
        ("project", "jfluid run project"),
    ):
        assert command.main([word]) == 2
        assert meant in capsys.readouterr().err


GOLDEN = ROOT / "tests" / "golden" / "models" / "separate"
NOWHERE = "/proc/nowhere/file"  # a path that nobody can write


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["launch"], "the following arguments are required: target\n"),
        (["launch", "gone.yaml"], "gone.yaml: No such file or directory (looked in "),
        (["launch", "--set", "log_times=maybe", "train.py"], "log_times: must be true or false, found 'maybe'"),
        (["launch", "--set", "max_restarts=1.5", "train.py"], "max_restarts: must be a whole number, found 1.5"),
        (["launch", "--log_dir", "/proc/nowhere", "train.py"], "name a different folder with --log_dir"),
        (["doctor", "gone"], "gone: there is no such file or folder (looked in "),
        (["doctor", "s3://bucket/model"], "s3://bucket/model: expected a path of this machine"),
        (["inspect", "gone"], "gone: there is no such file or folder: expected the folder that save_inference_model"),
        (["inspect", "s3://bucket/model"], "s3://bucket/model: expected a path of this machine"),
        (["inspect", "garbage"], "(expected a program that Fluid or jfluid saved)"),
        (["inspect", GOLDEN, "--html", NOWHERE], f"{NOWHERE}: the file cannot be written (No such file or directory)"),
        (["export", "gone", "--to", "jax"], "gone: there is no such file or folder: expected the folder"),
        (["export", GOLDEN, "--to", "jax", "--output", NOWHERE], "name a file in a different folder with --output"),
        (["serve", "gone", "--port", "0"], "gone: there is no such file or folder: expected the folder"),
        (["serve", GOLDEN, "--port", "99999"], "argument --port: expected a port from 0 (any free port) to 65535"),
        (["serve", GOLDEN, "--host", "192.0.2.1"], "name an address of this machine with --host"),
        (["demo", "word2vec", "--copy", "--folder", "/proc/nowhere"], "name a different folder with --folder"),
        (["dashboard", "gone", "--port", "x"], "argument --port: expected a port from 0 (any free port) to 65535"),
    ],
    ids=lambda value: " ".join(map(str, value)).replace(str(GOLDEN), "MODEL") if isinstance(value, list) else "",
)
def test_wrong_input_is_told_what_to_do(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage").write_bytes(b"\xff\xfe garbage")
    (tmp_path / "train.py").write_text("")
    try:
        code = command.main(list(map(str, words)))
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code in (1, 2) and told in said and "Traceback" not in said, (code, said)


# ---- run and launch


SCRIPT = """
import sys
import paddle.fluid as fluid
print(__name__, fluid.__name__, sys.argv[1:])
sys.exit(int(sys.argv[-1]))
"""


@pytest.mark.process
def test_run_is_as_python_runs_it(tmp_path):
    (tmp_path / "news").mkdir()
    (tmp_path / "news" / "train.py").write_text(SCRIPT)
    for fresh, target in ((True, ["news/train.py"]), (False, ["-m", "news.train"])):
        done = run("run", *target, "--epochs", "7", folder=tmp_path, fresh=fresh)
        assert (done.stdout, done.returncode) == ("__main__ jfluid ['--epochs', '7']\n", 7)
    refused = run("run", "gone.py", folder=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith("jfluid run: gone.py: expected")
    for module in ("gone", "news.gone", "gone.train"):
        refused = run("run", "-m", module, folder=tmp_path)
        assert refused.returncode == 2 and refused.stderr == (
            f"jfluid run: -m {module}: there is no such module in {tmp_path}, nor among the installed modules\n"
        )
    assert "or a subcommand (jfluid --help" in run("gone", folder=tmp_path, fresh=True).stderr


@pytest.mark.process
def test_launch_runs_a_module_in_each_process(tmp_path):
    (tmp_path / "news").mkdir()
    (tmp_path / "news" / "words.py").write_text("WORDS = 3\n")
    (tmp_path / "news" / "train.py").write_text(
        "import os, sys\n"
        "from news.words import WORDS\n"
        "import paddle.fluid as fluid\n"
        "print(WORDS, os.environ['PADDLE_TRAINER_ID'], fluid.__name__, sys.argv[1:])\n"
    )
    done = run("launch", "--cpus", 2, "--console", "all", "-m", "news.train", "-m", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        said = untimed(tmp_path / "mylog" / f"workerlog.{rank}")
        assert said == f"3 {rank} jfluid ['-m']\n"


# ---- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_has_every_subcommand_and_option(shell, capsys):
    assert command.main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    for name in command.SUBCOMMANDS:
        assert name in shown
    for option in (
        "stall-timeout",
        "fix-python2",
        "params-filename",
        "max-held",
        "quick",
        "folder",
    ):
        assert option in shown, option


COMPLETED = [
    ("jfluid ser", "serve"),
    ("jfluid export --to s", "stablehlo"),
    ("jfluid launch --stall", "--stall-timeout"),
    ("jfluid completion z", "zsh"),
]


@pytest.mark.process
@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_bash_completes(line, expected):
    words = line.split(" ")
    script = (
        f"{completion._bash()}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
        "_jfluid; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
    assert (found.stdout.split(), found.stderr) == ([expected], "")


@pytest.mark.process
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_fish_completes(line, expected):
    script = f'{completion._fish()}\ncomplete -C "{line}"\n'
    found = subprocess.run(["fish", "-N", "-c", script], capture_output=True, text=True, timeout=300)
    assert [line.split("\t")[0] for line in found.stdout.splitlines()] == [expected]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_functions(tmp_path):
    (tmp_path / "completion").write_text(completion._zsh())
    command_line = f"source {tmp_path}/completion && print $_comps[jfluid]"
    found = subprocess.run(
        ["zsh", "-fc", command_line], env={**os.environ, "ZDOTDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.stdout == "_jfluid\n" and found.returncode == 0, found.stderr


# ---- colours


@pytest.mark.process
def test_no_color(tmp_path):
    """On a terminal the doctor's table is in colours, unless NO_COLOR is set."""
    (tmp_path / "train.py").write_text("import paddle.fluid as fluid\nfluid.layers.nothing()\n")
    colour = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|9\d)")
    seen = {}
    for no_color in ("", "1"):
        environment = {"NO_COLOR": no_color} if no_color else {}
        done = run("doctor", "train.py", folder=tmp_path, FORCE_COLOR="1", TERM="xterm", **environment)
        seen[no_color] = colour.search(done.stdout) is not None
        assert done.returncode == 1 and "nothing" in done.stdout
    assert seen == {"": True, "1": False}


# ---- examples


def test_demo_lists_and_copies_the_examples(tmp_path, capsys):
    assert command.main(["demo", "--list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    jobs = list((ROOT / "configs").glob("*.yaml")) + list((ROOT / "examples").rglob("*.yaml"))
    assert len(shown) == len(jobs) and all(len(line.split()) > 4 for line in shown)
    folder = tmp_path / "here"
    assert command.main(["demo", "--copy", "--folder", str(folder)]) == 0
    (folder / "examples" / "ctr_dnn.py").write_text("mine")
    assert command.main(["demo", "gallery/din", "--copy", "--folder", str(folder)]) == 0
    assert "jfluid launch examples/gallery/din.yaml" in capsys.readouterr().out
    assert (folder / "examples" / "ctr_dnn.py").read_text() == "mine"
    assert (folder / "configs" / "ctr_dnn.yaml").is_file()
    assert command.main(["demo", "ctr_dn"]) == 2
    assert "did you mean ctr_dnn" in capsys.readouterr().err


def test_demo_says_which_libraries_it_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jfluid.command.demo._NEEDED", ("no_such_library",))
    assert command.main(["demo", "--folder", str(tmp_path / "here")]) == 2
    assert "needs no_such_library: pip install 'jfluid[demo]'" in capsys.readouterr().err
    assert not (tmp_path / "here").exists()
