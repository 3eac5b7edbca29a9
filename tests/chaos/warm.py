"""What processes of jobs need is imported, and the machine code of tables loaded, before they are
forked from this one.

Nothing here may start threads: they do not come along. So JAX computes nothing.

To be imported by the process that forks only: it ends with its parent from then on. (It would also
end when the pipe from there is closed; but those that it has forked hold that open.)
"""

import numpy as np

from jfluid.distributed.server import program_store, serving
from jfluid.distributed.trainer import geo, training
from jfluid.ps_server import client, kernels, server, specs, table
from tests.chaos import entry, program

__all__ = ["client", "geo", "program", "program_store", "server", "serving", "training"]


def warm() -> None:
    """Do once what tables do."""
    ids = np.array([3, 1, 3])
    once, _ = kernels.distinct(ids)
    kernels.partition(kernels.owners_of(once, 2), 2)
    initializers = specs.Constant(value=0.0), specs.Uniform(low=-1.0, high=1.0)
    slots = specs.Slot(name="moment1"), specs.Slot(name="moment2")
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
warm()
