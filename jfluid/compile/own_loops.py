"""Loops over sequences on CPUs: by machine code of our own where it is made for the arrays."""

from jax import Array

from jfluid.ops.ragged import Level


class OwnLoops:
    """See `jfluid.ops.sequence_loops.SequenceLoops`."""

    def lstm(
        self,
        x: Array,
        level: Level,
        weight: Array,
        bias: Array,
        h0: Array,
        c0: Array,
        backwards: bool,
        acts: tuple[str, str, str],
        time_major: bool = False,
    ) -> tuple[Array, Array] | None:
        from jfluid.machine_code import direct_lstm  # LLVM, which few programs need

        arrays = weight, bias, h0, c0
        if not direct_lstm.suits(x, *arrays):
            return None
        return direct_lstm.over_sequences(x, level, *arrays, backwards, acts, time_major)

    def gru(
        self,
        x: Array,
        level: Level,
        to_gates: Array,
        to_candidate: Array,
        bias: Array,
        h0: Array,
        backwards: bool,
        origin: bool,
        acts: tuple[str, str],
    ) -> Array | None:
        from jfluid.machine_code import direct_gru  # as above

        arrays = to_gates, to_candidate, bias, h0
        if not direct_gru.suits(x, *arrays):
            return None
        return direct_gru.over_sequences(x, level, *arrays, backwards, origin, acts)

    def maximum(self, x: Array, level: Level) -> tuple[Array, Array] | None:
        from jfluid.machine_code import direct_maximum  # as above

        return direct_maximum.over_sequences(x, level) if direct_maximum.suits(x, level) else None
