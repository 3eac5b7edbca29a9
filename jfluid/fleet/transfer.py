"""How far fsspec has come with an upload or a download."""

from typing import Any

from fsspec import Callback

from jfluid.progress import Transfer


class BytesOfFiles(Callback):  # type: ignore[misc] # fsspec has no types
    """What fsspec is given to report an upload or download of several files: their bytes are
    counted in a Transfer, and not the files.
    """

    def __init__(self, transfer: Transfer):
        super().__init__()
        self._transfer = transfer

    def branched(self, path_1: str, path_2: str, **kwargs: Any) -> Callback:
        """Return what is given the bytes of one of the files."""
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
