"""DataFeedDesc: the slots of a dataset's lines, as a prototxt."""

from collections.abc import Sequence
from typing import Any

from google.protobuf import text_format

from jfluid import errors
from jfluid.dataset import data_feed_pb2 as proto
from jfluid.dataset.multislot import DatasetSlot
from jfluid.files.storage import bounded_reader


class DataFeedDesc:
    """A description of slots, read from a prototxt file.

    Args:
        proto_file: the file's path.

    Raises DataError when the text is no such description, FileFormatError (NoSuchFileError where
    there is none) for what is no file.
    """

    def __init__(self, proto_file: str):
        self.proto_desc = proto.DataFeedDesc(pipe_command="cat")
        with bounded_reader(proto_file) as reader:
            text = reader.take(reader.remaining, "the description")
        try:
            text_format.Parse(text.decode(), self.proto_desc)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise errors.DataError(f"{proto_file}: not a description of slots: {error}") from error

    def set_batch_size(self, batch_size: int) -> None:
        """Set the records of a batch."""
        self.proto_desc.batch_size = positive("batch_size", batch_size)

    def set_dense_slots(self, dense_slots_name: Sequence[str]) -> None:
        """Make slots dense: each record has the same number of values.

        Raises KeyError for a name that no slot has.
        """
        for name in dense_slots_name:
            self._slot(name).is_dense = True

    def set_use_slots(self, use_slots_name: Sequence[str]) -> None:
        """Let slots feed their variables; further slots are read and dropped.

        Raises KeyError for a name that no slot has.
        """
        for name in use_slots_name:
            self._slot(name).is_used = True

    def desc(self) -> str:
        """Return the description as prototxt."""
        return text_format.MessageToString(self.proto_desc)

    def _slot(self, name: str) -> Any:
        for slot in self.proto_desc.multi_slot_desc.slots:
            if slot.name == name:
                return slot
        known = [s.name for s in self.proto_desc.multi_slot_desc.slots]
        raise KeyError(f"no slot {name!r}{errors.close_to(name, known)}; the slots are {known}")


def positive(what: str, value: int) -> int:
    """Return the value, if it is a whole number above 0. Raises DataError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise errors.DataError(f"{what}: expected a whole number above 0, found {value!r}")
    return value


def text_of(feed: str, batch_size: int, slots: Sequence[DatasetSlot], pipe_command: str) -> str:
    """Return the prototxt of a dataset."""
    desc = proto.DataFeedDesc(name=feed, batch_size=batch_size, pipe_command=pipe_command)
    for slot in slots:
        line = desc.multi_slot_desc.slots.add(
            name=slot.name, type="float" if slot.decimal else "uint64", is_used=slot.used
        )
        if slot.shape is not None:
            line.is_dense = True
            line.shape.extend((-1, *slot.shape))
    return text_format.MessageToString(desc)
