"""The environment variables of a process; only this folder and the launcher read variables.

`jfluid.environment.process` has them all as typed fields. Its models take a tenth of a second to
load, for which a program's start does not wait: variables that each start reads are read as plain text by
`text`, and by a model where they are set.
"""

import os

JOB_TOKEN = "JFLUID_JOB_TOKEN"
OLDER_JOB_TOKEN = "JFLUID_PS_TOKEN"  # means the same where the other one is not set
PROGRESS_CHANNEL = "JFLUID_PROGRESS_CHANNEL"
RECORD_DIR = "JFLUID_RECORD_DIR"
CLOCK_AHEAD = "JFLUID_CLOCK_AHEAD"
GANG_MEMBER = "JFLUID_GANG_MEMBER"
DISABLE_PLOT = "DISABLE_PLOT"
TRAINER_ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"
JOINED = "JFLUID_JOINED"
DEFAULT_CPU_NUM = 1

text = os.environ.get


def tell_children(name: str, value: str) -> None:
    """Set a variable for the processes that this one starts, and for libraries that read the variable later."""
    os.environ[name] = value
