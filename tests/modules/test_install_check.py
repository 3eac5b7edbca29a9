"""`fluid.install_check`: what programs run on, and what keeps them from a GPU."""

import pytest

import jfluid as fluid
from jfluid import install_check


def test_run_check_names_the_device_and_runs_replicas(capsys, monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    fluid.install_check.run_check()
    printed = capsys.readouterr().out
    assert "works on 2 devices together" in printed
    assert "works on CPUPlace: 1 x cpu (jfluid " in printed and "jaxlib " in printed


@pytest.mark.parametrize(
    ("gpus", "driver", "plugin", "says"),
    [
        (0, "", False, ""),
        (0, "", True, "no NVIDIA driver is loaded"),
        (0, "570.86.15", True, "shows no GPU to this process"),
        (2, "570.86.15", False, r"shows 2 GPU(s), but JAX is installed without CUDA"),
        (2, "570.86.15", True, r"shows 2 GPU(s), but JAX does not use them: "),
    ],
)
def test_what_is_missing_is_named(monkeypatch, gpus, driver, plugin, says):
    monkeypatch.setattr(install_check, "_on_the_bus", lambda: False)
    found = install_check._missing(gpus, driver, plugin)
    assert says in found if says else not found


def test_a_gpu_without_a_driver_is_seen_on_the_bus(monkeypatch, tmp_path):
    for name, vendor, kind in (("a", "0x8086", "0x030000"), ("b", "0x10de", "0x020000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert not install_check._on_the_bus(tmp_path)
    assert not install_check._on_the_bus(tmp_path / "none")
    (tmp_path / "b" / "class").write_text("0x030200\n")
    assert install_check._on_the_bus(tmp_path)
    monkeypatch.setattr(install_check, "_on_the_bus", lambda: True)
    assert "its driver is not loaded" in install_check._missing(0, "", False)


def test_the_driver_is_named(tmp_path):
    file = tmp_path / "version"
    assert install_check._driver(file) == ""
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 16\n")
    assert install_check._driver(file) == "570.86.15"
    file.write_text("NVRM version: unreadable\n")
    assert install_check._driver(file) == "of an unknown release"
