"""`jfluid install-alias`: `import paddle` finds jfluid in interpreters that know nothing of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jfluid import command, startup

ROOT = str(Path(__file__).parent.parent.parent)


@pytest.mark.process
def test_paddle_is_jfluid_for_good_and_no_more(tmp_path, capsys):
    assert command.main(["install-alias", "--target", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"import paddle is jfluid, by {tmp_path}/paddle\n"
    code = "import paddle.fluid as fluid, paddle; print(fluid.__name__, paddle.__version__)"
    for choice, path in (({}, [str(tmp_path), ROOT]), ({}, [startup.FOLDER, str(tmp_path), ROOT])):
        environment = {n: v for n, v in os.environ.items() if n != startup.CHOICE} | choice
        environment["PYTHONPATH"] = os.pathsep.join(path)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert done.stdout == "jfluid 1.8.5\n" and "JFLUID_AS_PADDLE" not in done.stderr
    environment[startup.CHOICE] = "0"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "JFLUID_AS_PADDLE=0 leaves jfluid out" in done.stderr
    assert command.main(["install-alias", "--target", str(tmp_path)]) == 0  # once more
    assert command.main(["install-alias", "--remove", "--target", str(tmp_path)]) == 0
    assert not (tmp_path / "paddle").exists()
    assert command.main(["install-alias", "--remove", "--target", str(tmp_path)]) == 1
    assert "there is no paddle in" in capsys.readouterr().err


@pytest.mark.process
def test_the_launcher_of_paddle_runs(tmp_path):
    assert command.main(["install-alias", "--target", str(tmp_path)]) == 0
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), ROOT])}
    done = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--help"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "--started_port" in done.stdout


def test_another_paddle_stays(tmp_path, capsys):
    """One that was installed over the alias, too."""
    assert command.main(["install-alias", "--target", str(tmp_path)]) == 0
    (tmp_path / "paddle" / "__init__.py").write_text("another = True")
    for arguments in ([], ["--remove"]):
        assert command.main(["install-alias", *arguments, "--target", str(tmp_path)]) == 1
        assert f"{tmp_path}/paddle is another paddle" in capsys.readouterr().err
    assert (tmp_path / "paddle" / "__init__.py").read_text() == "another = True"
