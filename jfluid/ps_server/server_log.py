"""Lines of a server's log: times, and the rows and numbers that the server holds."""

import contextlib
import logging
from collections.abc import Iterator

from jfluid.printable import printable
from jfluid.ps_server.store import Store


class Formatter(logging.Formatter):
    """Formatter of log lines that escapes names and messages of other processes for terminals."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        return printable(super().format(record))


@contextlib.contextmanager
def on_stderr() -> Iterator[None]:
    """Write log lines of jfluid to standard error, unless the script has set up logging itself."""
    logger = logging.getLogger("jfluid")
    if logger.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(Formatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def held(store: Store) -> str:
    """Return the tables with their rows and bytes, and the number of blocks of a store."""
    tables = [
        f"table {name} ({table.size.rows:,} rows of {table.spec.width} numbers, {table.size.bytes / 1e6:,.1f} MB)"
        for name, table in sorted(store.tables.items())
    ]
    names = sorted(name for name in store.blocks if not name.startswith("@"))  # the others are a server's own
    shown = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
    blocks = [f"{len(names)} block{'s' * (len(names) > 1)} of dense parameters ({shown})"] if names else []
    return ", ".join(tables + blocks) or "nothing"
