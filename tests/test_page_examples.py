"""Examples in pages run: their Python, their job files, and their commands, whose files and options
there are.

What an example needs before it stands in a comment `<!-- python ... -->` above it, which readers of
the site do not see.
"""

import contextlib
import importlib.util
import os
import re
import runpy
import shlex
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from jfluid.compat.paddle.aliases import target
from jfluid.job import read_job
from jfluid.ps_server import validation
from jfluid.ps_server.__main__ import _Beginning
from jfluid.ps_server.server import Server, Settings
from tests import forked
from tests.ports import free_endpoints
from tests.stated_names import PAGES, READERS_OWN, ROOT

_BLOCK = re.compile(
    r'^( *)(?:```(\w+)(?: title="(.*?)")?\n(.*?)^ *```|<!-- python\n(.*?)^ *-->)',
    re.MULTILINE | re.DOTALL,
)
# Keys of other programs' files that pages show.
_OTHERS = {"scrape_configs"}
# What the options of a command are read from; those of other programs are not held against
# anything.
_SOURCES = {
    "jfluid-launch": "jfluid/launch/command.py",
    "paddle.distributed.launch": "jfluid/launch/command.py",
    "jfluid.ps_server": "jfluid/ps_server/__main__.py",
    "jfluid.security": "jfluid/security/__main__.py",
    "jfluid.check_device": "jfluid/check_device/__main__.py",
    "jfluid doctor": "jfluid/command/doctor.py",
    "jfluid inspect": "jfluid/command/inspect.py",
    "jfluid export": "jfluid/command/export.py",
    "jfluid serve": "jfluid/command/serve.py",
    "jfluid install-alias": "jfluid/command/install_alias.py",
    "jfluid launch": "jfluid/launch/command.py",
    "jfluid demo": "jfluid/command/demo.py",
    "jfluid completion": "jfluid/command/completion.py",
    "jfluid check-device": "jfluid/check_device/__main__.py",
    "jfluid bench": "benchmarks/bench.py",
    "jfluid dashboard": "jfluid/command/dashboard.py",
    "jfluid profile": "jfluid/command/profile.py",
    "scripts.pages": "scripts/pages/__main__.py",
    "tests.chaos": "tests/chaos/__main__.py",
}
_OTHER_PROGRAMS = {"pip", "pytest", "mkdocs"}


# Libraries that recipes use and that no extra brings: what needs them runs where they are installed.
_UNTOLD = ("datasets", "grain", "pandas", "pyarrow", "safetensors", "torch")

# What the launcher tells the only process of a job; examples that train together run as such.
ENVIRONMENT = {
    "CPU_NUM": "2",
    "PADDLE_TRAINER_ID": "0",
    "PADDLE_TRAINERS_NUM": "1",
    "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:6170",
    "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:6170",
    "JFLUID_JOB_TOKEN": "a-secret-of-the-tests",
}


def blocks(page, language):
    """(first line, title, text) of each example of a page in a language; Python's with what they
    need before.
    """
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        _, kind, title, shown, hidden = found.groups()
        if (kind or "python") == language:
            yield text.count("\n", 0, found.start()) + 2, title, textwrap.dedent(hidden or shown)


def pages(language):
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if any(blocks(page, language))]


# ---- Python ----


@contextlib.contextmanager
def served(text):
    """An example that finds a server of the test where the page has `python -m jfluid.ps_server
    --port 7164`.
    """
    if (stated := "127.0.0.1:7164") not in text:
        yield text
        return
    server = Server(Settings(token=ENVIRONMENT["JFLUID_JOB_TOKEN"]))
    server.start()
    yield text.replace(stated, f"127.0.0.1:{server.port}")
    server.stop()


def _run(script):
    runpy.run_path(script, run_name="__main__")


def run_job(script):
    """Run a script as `jfluid-launch --servers 1 --trainers 1` does, in forked processes."""
    server, trainer = free_endpoints(2)
    host, port = server.split(":")
    job = {
        **os.environ,
        "PADDLE_PSERVERS_IP_PORT_LIST": server,
        "PADDLE_TRAINER_ENDPOINTS": trainer,
        "POD_IP": host,
        "PADDLE_PORT": port,
    }
    processes, outputs = zip(
        *[forked.start(_run, script, {**job, "TRAINING_ROLE": role}) for role in ("PSERVER", "TRAINER")]
    )
    with ThreadPoolExecutor(2) as threads:
        said = "\n".join(threads.map(lambda streams: _read(*streams, processes), outputs))
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0], said


def _read(stream, processes):
    """What a process says until it ends. One that fails ends the others, as under the launcher."""
    with stream:
        said = stream.read()
    if "Traceback" in said:
        for process in processes:
            process.terminate()
    return said


def _lacks(text):
    """Whether an example imports a library that is not installed here."""
    return any(
        re.search(rf"^import {name}\b", text, re.MULTILINE) and importlib.util.find_spec(name) is None
        for name in _UNTOLD
    )


def run_page(page):
    """Run the blocks of a page without a title, top to bottom."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    names = {"__name__": "example"}
    for line, title, text in blocks(page, "python"):
        if not title and not _lacks(text):
            with served("\n" * (line - 1) + text) as code:
                exec(compile(code, page, "exec"), names)
    for name in [name for name in names if name.startswith("test_")]:
        names[name]()


@pytest.mark.process
@pytest.mark.parametrize("page", pages("python"))
def test_python_runs(page, tmp_path, monkeypatch):
    """A block with a title is a script, which one server and one trainer run. The others run
    afterwards in one process of their own: they set flags, register operators and join jobs.
    """
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for _, title, text in blocks(page, "python"):
        if title:
            Path(title).write_text(text)
            run_job(title)
    process, (output,) = forked.start(run_page, page, os.environ)
    said = _read(output, [process])
    process.join()
    assert process.exitcode == 0, said


# ---- job files ----


def _parts(text):
    """The job files in an example: a new one begins with each `mode:` behind an empty line."""
    return re.split(r"\n\n(?=mode:)", text)


@pytest.mark.parametrize("page", pages("yaml"))
def test_job_files_are_valid(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("a-secret-of-the-tests")
    Path("secret").chmod(0o600)
    for line, _, text in blocks(page, "yaml"):
        for part in _parts(text):
            keys = set(yaml.safe_load(part))
            if keys == {"tables", "blocks"}:
                assert validation.read(_Beginning, yaml.safe_load(part), "tables").tables
            elif not keys <= _OTHERS:
                part = part.replace("/home/me/secret", "secret")
                job = part if "script" in keys else f"{part}\nscript: train.py\n"
                script = Path(yaml.safe_load(job)["script"])
                script.parent.mkdir(exist_ok=True)
                script.touch()
                Path("job.yaml").write_text("\n" * (line - 1) + job)  # errors name the page's line
                assert read_job("job.yaml").script == str(script)


# ---- commands ----


def _commands(page):
    """The command lines of a page: in its examples, in indented blocks, and in the text."""
    text = page.read_text()
    shown = [line for _, _, block in blocks(page, "sh") for line in block.splitlines()]
    rest = _BLOCK.sub("", text)
    shown += re.findall(r"^    (\S.*)$", rest, re.MULTILINE)
    shown += [re.sub(r"[\[\]]", "", span) for span in re.findall(r"`([^`\n]+)`", rest)]
    for line in shown:
        words = (
            shlex.split(line, comments=True)
            if line.count('"') % 2 == 0 and "'" not in line
            else line.partition(" #")[0].split()
        )
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        if words and (
            words[0] in ("jfluid", "jfluid-launch", "make", *_OTHER_PROGRAMS) or words[0].rsplit("/", 1)[-1] == "python"
        ):
            yield words


def _stale(words):
    """What a command line has that there is not."""
    program, *rest = words
    if words[:2] == ["jfluid", "launch"]:
        program, rest = "jfluid-launch", rest[1:]
    elif words[:2] == ["jfluid", "run"]:
        program, rest = "python", ["-m", "jfluid", *rest[1:]]
    elif words in (
        ["jfluid", "--version"],
        ["jfluid", "--help"],
        ["jfluid", "SUBCOMMAND", "--help"],
    ):
        return []
    if program == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        return [word for word in rest if "=" not in word and not word.startswith("-") and word not in targets]
    if program != "jfluid-launch" and rest[:1] == ["-m"]:
        program, rest = rest[1], rest[2:]
    elif program != "jfluid-launch" and rest and rest[0].endswith(".py"):
        program, rest = rest[0], rest[1:]
    if program == "jfluid":
        if not rest:
            return []
        if rest[0] == "-m":
            return [] if importlib.util.find_spec(target(rest[1])) else rest[1:2]
        if rest[0].endswith(".py"):  # a script, with its arguments
            return [] if rest[0] in READERS_OWN or (ROOT / rest[0]).exists() else rest[:1]
        own = rest[1 : rest.index("--")] if "--" in rest else rest[1:]
        program, rest = f"jfluid {rest[0]}", own
    if program in _OTHER_PROGRAMS or program in READERS_OWN:
        return []
    if program.startswith("scripts.") and program not in _SOURCES:
        program = program.replace(".", "/") + ".py"
    source = ROOT / _SOURCES.get(program, program)
    if not source.is_file():
        return [program]
    ends = [at for at, word in enumerate(rest) if word.endswith(".py")]
    # what follows is the script's, or another program's
    ends += [at for at, word in enumerate(rest) if word in ("--", "sbatch")]
    others = program == "jfluid-launch" or {"--", "sbatch"} & set(rest)
    own = rest[: min(ends)] if ends and others else rest
    options = [word.split("=")[0] for word in own if word.startswith("--")]
    files = [word for word in own if re.search(r"\w\.(py|ya?ml)$", word) and word not in READERS_OWN]
    return [option for option in options if f'"{option}"' not in source.read_text()] + [
        name for name in files if not (ROOT / name).exists()
    ]


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES if any(_commands(p))])
def test_commands_have_files_and_options_that_there_are(page):
    for words in _commands(page):
        assert _stale(words) == [], words


def test_options_named_alone_are_those_of_some_command():
    known = "".join((ROOT / source).read_text() for source in _SOURCES.values())
    known += "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    for page in PAGES:
        for option in re.findall(r"`(--[\w-]+)", _BLOCK.sub("", page.read_text())):
            # of a script, of sbatch, of XLA
            of_others = option in ("--epochs", "--requeue", "--xla_cpu_max_isa")
            assert f'"{option}"' in known or of_others, (page.name, option)


def test_stale_commands_are_found():
    assert _stale(["jfluid-launch", "--gone", "train.py", "--epochs"]) == ["--gone"]
    assert _stale(["jfluid-launch", "gone.yaml"]) == ["gone.yaml"]
    assert _stale(["python", "-m", "jfluid.ps_server", "--gone"]) == ["--gone"]
    assert _stale(["python", "-m", "jfluid", "gone.py", "--epochs"]) == ["gone.py"]
    assert _stale(["python", "-m", "jfluid", "-m", "paddle.gone", "train.py"]) == ["paddle.gone"]
    assert _stale(["jfluid", "run", "gone.py", "--epochs"]) == ["gone.py"]
    assert _stale(["jfluid", "launch", "--gone", "train.py"]) == ["--gone"]
    assert _stale(["jfluid", "gone", "train.py"]) == ["jfluid gone"]
    assert _stale(["python", "-m", "jfluid.gone"]) == ["jfluid.gone"] and _stale(["make", "gone"]) == ["gone"]
    assert _stale(["python", "benchmarks/steps.py", "--steps", "1", "--gone"]) == ["--gone"]
