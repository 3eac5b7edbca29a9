"""What processes of jobs need is imported, the machine code of tables loaded, and the shapes of their
programs inferred, before they are forked from this one.

Nothing here may start threads: they do not come along. So JAX traces, and computes nothing.

To be imported by the process that forks only: it ends with its parent from then on. (It would also
end when the pipe from there is closed; but those that it has forked hold that open.)
"""

import importlib
import os

import numpy as np

from jfluid.ps_server import kernels, specs, table
from tests.chaos import entry, program
from tests.distributed import job

IMPORTED = (  # by jobs, when they come to it
    "encodings.idna",
    "grpc._channel",
    "grpc._interceptor",
    "grpc._server",
    "grpc.experimental",
    "jax.experimental.multihost_utils",
    "jaxlib.mlir.dialects.builtin",
    "jaxlib.mlir.dialects.mhlo",
    "jfluid.distributed.server.program_store",
    "jfluid.distributed.server.serving",
    "jfluid.distributed.trainer.geo",
    "jfluid.distributed.trainer.training",
    "jfluid.io",
    "jfluid.profiler",
    "jfluid.ps_server.__main__",
    "jfluid.ps_server.client",
    "jfluid.ps_server.recovery",
    "jfluid.ps_server.server",
)


def warm() -> None:
    """Import what jobs do, and build what they train."""
    for module in IMPORTED:
        importlib.import_module(module)
    for build in (
        job.net("sparse", "adam", own_state=True),
        job.wide_net("sparse"),
        program.marks(4, hashed=True),
    ):
        with job.programs():
            build()


def warm_tables() -> None:
    """Do once what tables do."""
    ids = np.array([3, 1, 3])
    once, _ = kernels.distinct(ids)
    kernels.partition(kernels.owners_of(once, 2), 2)
    initializers = specs.Constant(value=0.0), specs.Uniform(low=-1.0, high=1.0)
    slots = specs.SlotSpec(name="moment1"), specs.SlotSpec(name="moment2")
    for number, optimizer in enumerate(
        (
            specs.Sgd(learning_rate=1.0),
            specs.Adam(learning_rate=1.0),
            specs.Program(learning_rate=1.0, slots=slots),
        )
    ):
        spec = specs.TableSpec(
            name=f"table{number}",
            width=4,
            initializer=initializers[number % 2],
            optimizer=optimizer,
        )
        held = table.SparseTable(spec)
        held.look_up(once, train=True)
        ones = np.ones((len(once), 4), np.float32)
        held.assign(once, ones)
        held.add(once, ones)
        if isinstance(optimizer, specs.Program):
            held.update(once, ones, lambda values, slots, gradients: (values, slots))
        else:
            held.push(once, ones)
        held.look_up(once, train=False)
        held.slots(once)
        with held.view() as view:
            list(view.rows())


entry.end_with_parent()
os.fsync = lambda handle: None  # as tests/conftest.py
warm()
warm_tables()
