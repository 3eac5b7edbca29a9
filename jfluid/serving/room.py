"""Bytes that large requests and answers under way may take together."""

from jfluid.serving.blocks import SMALL
from jfluid.serving.requests import TooManyRequests


class Room:
    """Bytes that large requests may hold at a time. It is used from the server's loop only."""

    def __init__(self, most: int):
        """Have room for `most` bytes."""
        self.most, self.held = most, 0

    def share(self) -> "Share":
        """Return the share of one request, of nothing yet."""
        return Share(self)

    def change(self, by: int) -> None:
        """Reserve or release bytes. Raises TooManyRequests where fewer bytes are free."""
        if by > 0 and self.held + by > self.most:
            raise TooManyRequests(
                f"large requests and answers under way hold {self.held} bytes of {self.most} for all requests: ask "
                "again later, or for less at a time"
            )
        self.held += by


class Share:
    """Reservation of a request; small requests reserve nothing and are always admitted."""

    def __init__(self, room: Room):
        self._room, self._bytes = room, 0

    def set(self, size: int) -> None:
        """Set the reserved bytes. Raises TooManyRequests, and keeps the reservation as it was."""
        wanted = size if size > SMALL else 0
        self._room.change(wanted - self._bytes)
        self._bytes = wanted
