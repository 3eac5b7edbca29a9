"""Rows of tables on CPUs by machine code of our own (`direct_rows.py`) where it is made for the arrays."""

from collections.abc import Callable, Sequence

from jax import Array


class EmbeddingKernels:
    """See `jfluid.ops.table_rows.TableRows`."""

    def take(self, table: Array, rows: Array) -> Array | None:
        from jfluid.machine_code import direct_rows  # LLVM, which few programs need

        return direct_rows.take(table, rows) if direct_rows.suits(table, rows) else None

    def add(self, table: Array, rows: Array, values: Array, scale: Array) -> Array | None:
        from jfluid.machine_code import direct_rows  # as above

        suits = direct_rows.suits(table, rows)
        return direct_rows.add(table, rows, values, scale) if suits else None

    def update(
        self,
        function: Callable[..., Sequence[Array]],
        rows: Array,
        values: Array,
        tables: Sequence[Array],
    ) -> tuple[Array, ...] | None:
        from jfluid.machine_code import direct_rows  # as above

        if not all(direct_rows.suits(array, rows) for array in (values, *tables)):
            return None
        return direct_rows.update(function, rows, values, tables)
