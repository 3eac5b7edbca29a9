"""Loops over sequences on CPUs: by machine code of our own where it is made for the arrays."""

from jax import Array

from jfluid.ops.ragged import Level
from jfluid.ops.sequence_loops import GruArrays, GruForm, LstmArrays, LstmForm


class RnnKernels:
    """See `jfluid.ops.sequence_loops.SequenceLoops`."""

    def lstm(self, x: Array, level: Level, arrays: LstmArrays, form: LstmForm) -> tuple[Array, Array] | None:
        from jfluid.machine_code import lstm_dispatch  # LLVM, which few programs need

        suits = lstm_dispatch.suits(x, arrays)
        return lstm_dispatch.over_sequences(x, level, arrays, form) if suits else None

    def gru(self, x: Array, level: Level, arrays: GruArrays, form: GruForm) -> Array | None:
        from jfluid.machine_code import gru_dispatch  # as above

        suits = gru_dispatch.suits(x, arrays)
        return gru_dispatch.over_sequences(x, level, arrays, form) if suits else None
