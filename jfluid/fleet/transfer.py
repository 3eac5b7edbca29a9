"""Progress of fsspec's uploads and downloads."""

from typing import Any

from fsspec import Callback

from jfluid.progress import Transfer


class BytesOfFiles(Callback):  # type: ignore[misc] # fsspec has no types
    """fsspec callback that counts the bytes of several files in a Transfer, rather than the files."""

    def __init__(self, transfer: Transfer):
        super().__init__()
        self._transfer = transfer

    def branched(self, path_1: str, path_2: str, **kwargs: Any) -> Callback:
        """Return the callback for the bytes of a file."""
        return _BytesOfFile(self._transfer)


class _BytesOfFile(Callback):  # type: ignore[misc]
    def __init__(self, transfer: Transfer):
        super().__init__()
        self._transfer = transfer

    def relative_update(self, inc: int = 1) -> None:
        self.value += inc
        self._transfer.add(inc)

    def absolute_update(self, value: int) -> None:
        self.relative_update(value - self.value)
