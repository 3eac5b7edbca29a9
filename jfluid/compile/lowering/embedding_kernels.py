"""Look-ups and updates of rows of tables by CPU kernels (`row_dispatch.py`), for arrays that the kernels suit."""

from collections.abc import Callable, Sequence

from jax import Array


class EmbeddingKernels:
    """See `jfluid.ops.table_rows.TableRows`."""

    def take(self, table: Array, rows: Array) -> Array | None:
        from jfluid.machine_code import row_dispatch  # LLVM, which few programs need

        return row_dispatch.take(table, rows) if row_dispatch.suits(table, rows) else None

    def add(self, table: Array, rows: Array, values: Array, scale: Array) -> Array | None:
        from jfluid.machine_code import row_dispatch  # as above

        suits = row_dispatch.suits(table, rows)
        return row_dispatch.add(table, rows, values, scale) if suits else None

    def update(
        self,
        function: Callable[..., Sequence[Array]],
        rows: Array,
        values: Array,
        tables: Sequence[Array],
    ) -> tuple[Array, ...] | None:
        from jfluid.machine_code import row_dispatch  # as above

        if not all(row_dispatch.suits(array, rows) for array in (values, *tables)):
            return None
        return row_dispatch.update(function, rows, values, tables)
