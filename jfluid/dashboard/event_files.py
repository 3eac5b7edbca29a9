"""A run as event files, which TensorBoard reads, and as logs of VisualDL, which has a format of its own."""

import base64
import binascii
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jfluid import errors
from jfluid.dashboard.exports import numbers_of
from jfluid.dashboard.runs import Run
from jfluid.printable import printable
from jfluid.record import lines
from jfluid.security import private_files


def write(run: Run, folder: Path) -> None:
    """Write all numbers, images and histograms of a run, with one folder for each process.

    Raises DependencyError where tensorboardX is not installed.
    """
    try:
        from tensorboardX import FileWriter
    except ModuleNotFoundError:
        raise errors.DependencyError("jfluid dashboard --tensorboard", "tensorboardX", "tensorboard") from None
    _write(run, folder, FileWriter, _add)


def write_visualdl(run: Run, folder: Path) -> None:
    """Write all numbers and images of a run for VisualDL, with one folder for each process.

    Raises DependencyError where visualdl is not installed.
    """
    try:
        from visualdl import LogWriter
    except ModuleNotFoundError:
        raise errors.DependencyError("jfluid dashboard --visualdl", "visualdl", "visualdl") from None
    _write(run, folder, LogWriter, _add_visualdl)


def _write(run: Run, folder: Path, open_writer: Callable[[str], Any], add: Callable[..., None]) -> None:
    for path in lines.files(run.place):
        own = folder / re.sub(r"[^\w.-]", "_", path.name.removesuffix(lines.SUFFIX))
        writer = None
        for line in lines.Tail(path).lines():
            for tag, value in _values(line):
                if writer is None:  # of a process that has logged something
                    private_files.make_folder(own)
                    writer = open_writer(str(own))
                add(writer, tag, value, line)
        if writer is not None:
            writer.close()


def _add(writer: Any, tag: str, value: Any, line: lines.Line) -> None:
    from tensorboardX.proto.summary_pb2 import HistogramProto, Summary

    if isinstance(value, bytes):
        made = Summary.Value(tag=tag, image=Summary.Image(encoded_image_string=value))
    elif isinstance(value, dict):
        made = Summary.Value(tag=tag, histo=HistogramProto(**value))
    else:
        made = Summary.Value(tag=tag, simple_value=value)
    writer.add_summary(Summary(value=[made]), _step(line), line["t"])


def _add_visualdl(writer: Any, tag: str, value: Any, line: lines.Line) -> None:
    tag, step, moment = tag.replace("%", "percent"), _step(line), round(1e3 * line["t"])
    if isinstance(value, bytes):
        import numpy as np
        from PIL import Image  # which visualdl needs

        try:
            picture = np.array(Image.open(io.BytesIO(value)).convert("RGBA"))
        except (OSError, ValueError):  # no PNG, or a part of one
            return
        writer.add_image(tag, picture, step, walltime=moment)
    elif not isinstance(value, dict):  # VisualDL computes a histogram from all values, which no record has
        writer.add_scalar(tag, value, step, walltime=moment)


def _step(line: lines.Line) -> int:
    """Return the step of a line; 0 where it has none, or one that no file takes."""
    step = line.get("step")
    return step if isinstance(step, int) and abs(step) < 1 << 63 else 0


def _values(line: lines.Line) -> list[tuple[str, Any]]:
    """Return the values of a line by name: a number, the bytes of a PNG, or the fields of a histogram."""
    if line["kind"] in ("image", "histogram"):
        value = _image(line) if line["kind"] == "image" else _histogram(line)
        return [] if value is None else [(printable(str(line.get("name")), lines=False), value)]
    return [(printable(name, lines=False), value) for name, value in numbers_of(line).items()]


def _image(line: lines.Line) -> bytes | None:
    try:
        return base64.b64decode(line["png"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None


def _histogram(line: lines.Line) -> dict[str, Any] | None:
    low, high = lines.number(line.get("low")), lines.number(line.get("high"))
    counts = line.get("counts")
    if low is None or high is None or not isinstance(counts, list) or not counts:
        return None
    if not all(type(count) is int for count in counts):
        return None
    width = (high / 2 - low / 2) / len(counts) * 2  # the ends may lie too far apart for a difference
    middles = [low + (i + 0.5) * width for i in range(len(counts))]
    return {
        "min": low,
        "max": high,
        "num": sum(counts),
        "sum": sum(count * middle for count, middle in zip(counts, middles)),
        "sum_squares": sum(count * middle**2 for count, middle in zip(counts, middles)),
        "bucket_limit": [low + (i + 1) * width for i in range(len(counts))],
        "bucket": counts,
    }
