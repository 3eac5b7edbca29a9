"""Row counts of the servers' tables in a trainer's progress."""

import threading
from typing import TYPE_CHECKING

from jfluid import errors

if TYPE_CHECKING:
    from jfluid.ps_server.client import Client

_SECONDS_BETWEEN_QUESTIONS = 1.0


def table_rows(client: "Client") -> dict[str, int]:
    """Return how many rows each table has, over all servers."""
    rows: dict[str, int] = {}
    for status in client.status():
        for name, table in status.tables.items():
            rows[name] = rows.get(name, 0) + table.rows
    return rows


class RowCount:
    """Counter of the rows of all tables, every second, in a separate thread: a step never waits for it.

    Called it returns {"rows": the newest count}, and nothing before there is one.
    """

    def __init__(self, client: "Client"):
        self._client = client
        self._rows: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="jfluid-row-count", daemon=True)

    def __enter__(self) -> "RowCount":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def __call__(self) -> dict[str, int]:
        return {} if self._rows is None else {"rows": self._rows}

    def _ask(self) -> None:
        try:
            while True:
                self._rows = sum(table_rows(self._client).values())
                if self._stop.wait(_SECONDS_BETWEEN_QUESTIONS):
                    return
        except errors.ServerError:  # the step that needs the server tells of it
            return
