"""The page in a real browser: Debian's chromium, where there is one."""

import json
import os
import re
import shutil
import subprocess

import pytest

from jfluid.command import main
from tests.test_dashboard import HOSTILE, job  # noqa: F401

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine (apt-get install chromium)"),
]
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=5000 --window-size=390,800 --enable-logging=stderr"
).split()


@pytest.fixture
def shown(job, tmp_path):  # noqa: F811
    """The kept page of a job as the browser has put it together, and what it complained of."""
    kept = tmp_path / "run.html"
    assert main(["dashboard", str(job), "--export", str(kept)]) == 0
    done = subprocess.run(
        [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", kept.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    return done.stdout, done.stderr


def test_the_kept_page_shows_all_and_runs_nothing_of_others(shown):
    page, said = shown
    assert "CONSOLE" not in said, [line for line in said.splitlines() if "CONSOLE" in line]
    rows = re.findall(r"<tr><th scope=\"row\">(trainer \d)</th>.*?<td class=\"(\w+)\">(.*?)</td>", page)
    assert rows == [("trainer 0", "quiet", "ended"), ("trainer 1", "bad", "failed: signal SIGKILL")]
    assert re.search(r'id="problem" class="banner bad".*?>rank 1 failed first \(signal SIGKILL\)', page)
    # the charts of hostile names, and their traceback
    text = "&lt;img src=x onerror=alert(1)&gt;\\x1b[2J\\u202e&lt;/script&gt;"
    assert f"<span>{text}</span>" in page and f"Traceback {text}</pre>" in page
    assert "<img src=x" not in page and HOSTILE not in page
    assert "loss, newest: trainer 0: 1" in page and "script: train.py" in page
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1)
    assert json.loads(data)["runs"]
