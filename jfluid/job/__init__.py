"""The job file of `jfluid-launch job.yaml`, as a validated model.

    name: recognize_digits          # default: the script's name
    mode: local                     # one process
    script: examples/digits.py      # relative to the directory you launch from
    args: {epochs: 10, lr: 1e-3}    # --epochs 10 --lr 0.001; or a list, passed unchanged
    env: {CPU_NUM: 2}               # added to the script's environment
    shape_buckets: {src_ids: {"1": [32, 64]}}     # sizes to pad batches to, by feed and dimension
    log_dir: mylog                  # the script's output also goes to mylog/workerlog.0
    log_max_bytes: 268435456        # then a new file begins, and the old file is mylog/workerlog.0.1
    log_backups: 1                  # number of old files of each process
    log_times: true                 # lines of these files begin with the time of their arrival
    stall_timeout: 600              # seconds without a step after which the job ends
    max_restarts: 3                 # number of restarts after failures

    mode: collective                # processes that train together
    gpus: 4                         # on each host: a process for each; or a list of GPUs, or all
    processes: 2                    # on each host; without gpus on the CPU
    nodes: 2                        # hosts, each with a jfluid-launch
    ips: [10.0.0.1, 10.0.0.2]       # their addresses, or the coordinator's: coordinator: "10.0.0.1:6069"
    secret_file: /home/me/secret    # the job's secret (chmod 600), which several hosts need

    mode: parameter_server          # or ps
    servers: 2                      # on each host; or a list: ["10.0.0.1:6170", "10.0.0.2:6170"]
    trainers: 4
    server_grace: 10                # seconds for servers to end once all trainers have ended
    restarts: {servers: 1, trainers: 1}             # restarts of a single process while the job goes on
    snapshots: {folder: /data/ctr, every_s: 60}     # of the servers; a restarted server reads its rows there

YAML is read by its version 1.2 core rules, so that `no` is text and `1e-3` a number; duplicate
keys, tags and aliases are refused. Every error names file, line and column.
"""

from jfluid.job.document import read_yaml
from jfluid.job.errors import JobError
from jfluid.job.fields import Endpoint, address
from jfluid.job.model import (
    JOBS,
    CollectiveJob,
    GangJob,
    Job,
    ParameterServerJob,
    Restarts,
    Snapshots,
)
from jfluid.job.read import Options, read_job, script_job
from jfluid.job.schema import schema

__all__ = [
    "JOBS",
    "CollectiveJob",
    "Endpoint",
    "GangJob",
    "Job",
    "JobError",
    "Options",
    "ParameterServerJob",
    "Restarts",
    "Snapshots",
    "address",
    "read_job",
    "read_yaml",
    "schema",
    "script_job",
]
