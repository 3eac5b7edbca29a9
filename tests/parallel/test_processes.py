"""Several processes train as one device does on the joined batch."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, processes
from jfluid.processes import collective_watch
from tests.launch_case import launched, untimed
from tests.parity.parallel import train
from tests.ports import free_port

SCRIPT = Path(__file__).parent / "processes.py"
# (devices of a process, cases): dense, clipped and sparse gradients, statistics, both strategies.
NAMES = [
    (1, ["mlp_clip:reduce", "ctr_lazy_adam:allreduce"]),
    (2, ["conv_momentum:reduce", "mlp_adam:allreduce"]),
    pytest.param(
        1, ["mlp_adam:allreduce", "conv_momentum:allreduce", "ctr_lazy_adam:reduce"], marks=pytest.mark.nightly
    ),
    pytest.param(2, ["ctr_lazy_adam:allreduce"], marks=pytest.mark.nightly),
]


@functools.cache
def alone(case):
    """The losses and the state of a case on one device."""
    return train(fluid, case, 0)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(("devices", "names"), NAMES)
def test_two_processes_equal_one_device(devices, names, tmp_path):
    log = "--log_dir", tmp_path / "log"
    done = launched("--cpus", 2, *log, SCRIPT, tmp_path, devices, *names, forks=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        case, mode = name.split(":")
        wanted, state = alone(case)
        found = [dict(np.load(tmp_path / f"{case}_{mode}_{rank}.npz")) for rank in range(2)]
        losses = np.concatenate([f.pop("losses") for f in found], 1)
        assert losses.shape == (20, 2 * devices)
        np.testing.assert_allclose(losses.mean(1), np.mean(wanted, 1), rtol=1e-4, err_msg=name)
        for variable, value in state.items():
            for f in found:
                np.testing.assert_allclose(f[variable], value, rtol=1e-3, atol=2e-3, err_msg=f"{name} {variable}")


def test_wrong_places_among_the_trainers():
    with pytest.raises(errors.ProgramError, match="expected different endpoints and the id of an endpoint, found id 2"):
        processes.join(["a:1", "b:1"], 2)
    with pytest.raises(errors.ProgramError, match="expected different endpoints"):
        processes.join(["a:1", "a:1"], 0)
    with pytest.raises(errors.PlaceError, match="JAX has started before this process joined the job"):
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
        processes.join(["127.0.0.1:1", "127.0.0.1:2"], 0)
    assert processes.count() == 1 and processes.index() == 0 and not processes.joined()


def test_trainers_without_endpoints(monkeypatch):
    monkeypatch.delenv("PADDLE_TRAINER_ENDPOINTS", raising=False)
    build = fluid.BuildStrategy()
    build.num_trainers = 2
    program = fluid.CompiledProgram(fluid.Program()).with_data_parallel(build_strategy=build)
    with pytest.raises(
        errors.ProgramError,
        match="start the script with jfluid-launch, which sets PADDLE_TRAINER_ENDPOINTS",
    ):
        fluid.Executor(fluid.CPUPlace()).run(program)
    with pytest.raises(errors.ProgramError, match="trainer_id: expected 0 to 1, found 2"):
        fluid.ParallelExecutor(False, num_trainers=2, trainer_id=2)


LISTENING = """
import contextlib
import os
from pathlib import Path
import numpy as np
from jfluid import processes
rank = int(os.environ["PADDLE_TRAINER_ID"])
processes.join(os.environ["PADDLE_TRAINER_ENDPOINTS"].split(","), rank)
processes.all_gather(np.array([rank]))
own = set()
for file in Path("/proc/self/fd").iterdir():
    with contextlib.suppress(OSError):  # it was closed meanwhile
        own.add(os.readlink(file))
for family in ("tcp", "tcp6"):
    for line in Path(f"/proc/self/net/{family}").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in own:
            address, port = local.split(":")
            print(rank, address, int(port, 16))
processes.all_gather(np.array([rank]))
"""


@pytest.mark.process
def test_the_coordinator_listens_at_its_own_address_only(tmp_path, monkeypatch):
    port = free_port()
    (tmp_path / "train.py").write_text(LISTENING)
    monkeypatch.chdir(tmp_path)
    own = "--started_port", port, "--log_dir", "log"
    done = launched("--cpus", 2, *own, "train.py", forks=True)
    assert done.returncode == 0, done.stdout + done.stderr
    places = [line.split() for line in untimed(tmp_path / "log" / "workerlog.0").splitlines() if line.startswith("0 ")]
    # 127.0.0.1, and the same as an address of IPv6, as the kernel writes them
    assert [
        address in ("0100007F", "0000000000000000FFFF00000100007F") for _, address, own in places if own == str(port)
    ] == [True], places


@pytest.mark.parametrize("address", ["192.0.2.77", "[2001:db8::1]"])
def test_an_address_of_another_machine_is_refused(address, monkeypatch):
    with pytest.raises(
        errors.PlaceError,
        match="is no address of this machine .*JAX_COORDINATOR_BIND_ADDRESS=HOST:PORT",
    ):
        processes.join([f"{address}:1", "127.0.0.1:2"], 0)
    asked = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *arguments, **named: asked.append(named))
    monkeypatch.setattr(processes, "_joined", None)
    monkeypatch.setattr(collective_watch, "start", lambda rank: None)  # there is no coordinator
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "127.0.0.1:3")
    monkeypatch.setenv("JFLUID_JOINED", "0")  # which this joining sets
    processes.join([f"{address}:1", "127.0.0.1:2"], 0)
    assert asked[0]["coordinator_bind_address"] == "127.0.0.1:3"


LATE = """
import os
import numpy as np
import jfluid as fluid
x = fluid.data("x", [None, 2], "float32")
loss = fluid.layers.mean(fluid.layers.fc(x, 3))
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
assert len(fluid.cpu_places(2)) == 2
os.environ["CPU_NUM"] = "3"
for _ in fluid.io.DataLoader.from_generator([x], 2).set_batch_generator(
    lambda: iter([[np.ones((6, 2), "float32")]]), fluid.CPUPlace()
):
    pass  # JAX starts with the loader's first batch
exe.run(fluid.default_startup_program())
program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
print(exe.run(program, feed={"x": np.ones((6, 2), "float32")}, fetch_list=[loss])[0].shape)
os.environ["CPU_NUM"] = "5"
other = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
print(exe.run(other, feed={"x": np.ones((6, 2), "float32")}, fetch_list=[loss])[0].shape)
"""


@pytest.mark.process
def test_cpu_num_may_be_set_at_any_time():
    environment = {n: v for n, v in os.environ.items() if n not in ("CPU_NUM", "JAX_NUM_CPU_DEVICES")}
    done = subprocess.run(
        [sys.executable, "-c", LATE],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.splitlines() == ["(3,)", "(5,)"]


@pytest.mark.parametrize(
    ("variables", "joins"),
    [
        ({}, True),
        ({"PADDLE_TRAINER_ENDPOINTS": "a:1"}, False),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": "c:1"}, False),
        ({"JFLUID_JOINED": "1"}, False),  # started by one that has joined
    ],
)
def test_a_trainer_joins_the_job_before_jax_starts(monkeypatch, variables, joins):
    job = {"PADDLE_TRAINER_ENDPOINTS": "a:1,b:1", "PADDLE_TRAINER_ID": "1"} | variables
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    calls = []
    monkeypatch.setattr(processes, "join", lambda endpoints, number: calls.append(number))
    monkeypatch.setattr(processes, "_joined", None)
    jax.devices()
    processes.join_job()  # JAX has started: it is too late to join
    assert calls == []
    monkeypatch.setattr(processes, "has_started", lambda: False)
    processes.join_job()
    assert calls == [1] * joins
