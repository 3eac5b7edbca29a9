"""A run as event files, which TensorBoard reads, and as logs of VisualDL, which has a format of its own."""

import base64
import binascii
import io
import re
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
    for path in sorted(run.place.glob(f"*{lines.SUFFIX}")):
        name = re.sub(r"[^\w.-]", "_", path.name.removesuffix(lines.SUFFIX))
        writer = None
        for line in lines.Tail(path).lines():
            values = _values(line)
            if values:
                if writer is None:  # of a process that has logged something
                    private_files.make_folder(folder / name)
                    writer = FileWriter(str(folder / name))
                _add(writer, values, line)
        if writer is not None:
            writer.close()


def write_visualdl(run: Run, folder: Path) -> None:
    """Write all numbers and images of a run for VisualDL, with one folder for each process.

    Raises DependencyError where visualdl is not installed.
    """
    try:
        from visualdl import LogWriter
    except ModuleNotFoundError:
        raise errors.DependencyError("jfluid dashboard --visualdl", "visualdl", "visualdl") from None
    for path in sorted(run.place.glob(f"*{lines.SUFFIX}")):
        own = folder / re.sub(r"[^\w.-]", "_", path.name.removesuffix(lines.SUFFIX))
        writer = None
        for line in lines.Tail(path).lines():
            for value in _values(line):
                if "histo" not in value:
                    if writer is None:  # of a process that has logged something
                        private_files.make_folder(own)
                        writer = LogWriter(logdir=str(own))
                    _add_visualdl(writer, value, line)
        if writer is not None:
            writer.close()


def _add_visualdl(writer: Any, value: dict[str, Any], line: lines.Line) -> None:
    tag, step, moment = value["tag"].replace("%", "percent"), _step(line), round(1e3 * line["t"])
    if "image" in value:
        import numpy as np
        from PIL import Image  # which visualdl needs

        try:
            picture = np.array(Image.open(io.BytesIO(value["image"].encoded_image_string)).convert("RGBA"))
        except (OSError, ValueError):  # no PNG, or a part of one
            return
        writer.add_image(tag, picture, step, walltime=moment)
    else:
        writer.add_scalar(tag, value["simple_value"], step, walltime=moment)


def _step(line: lines.Line) -> int:
    """Return the step of a line; 0 where it has none, or one that no file takes."""
    step = line.get("step")
    return step if isinstance(step, int) and abs(step) < 1 << 63 else 0


def _add(writer: Any, values: list[dict[str, Any]], line: lines.Line) -> None:
    from tensorboardX.proto.summary_pb2 import Summary

    writer.add_summary(Summary(value=[Summary.Value(**value) for value in values]), _step(line), line["t"])


def _values(line: lines.Line) -> list[dict[str, Any]]:
    """Return the fields of `Summary.Value` that a line gives."""
    if line["kind"] == "image":
        return _image(line)
    if line["kind"] == "histogram":
        return _histogram(line)
    return [{"tag": printable(name, lines=False), "simple_value": value} for name, value in numbers_of(line).items()]


def _image(line: lines.Line) -> list[dict[str, Any]]:
    from tensorboardX.proto.summary_pb2 import Summary

    try:
        png = base64.b64decode(line["png"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        return []
    image = Summary.Image(encoded_image_string=png)
    return [{"tag": printable(str(line.get("name")), lines=False), "image": image}]


def _histogram(line: lines.Line) -> list[dict[str, Any]]:
    from tensorboardX.proto.summary_pb2 import HistogramProto

    low, high = lines.number(line.get("low")), lines.number(line.get("high"))
    counts = line.get("counts")
    if low is None or high is None or not isinstance(counts, list) or not counts:
        return []
    if not all(type(count) is int for count in counts):
        return []
    width = (high / 2 - low / 2) / len(counts) * 2  # the ends may lie too far apart for a difference
    middles = [low + (i + 0.5) * width for i in range(len(counts))]
    histogram = HistogramProto(
        min=low,
        max=high,
        num=sum(counts),
        sum=sum(count * middle for count, middle in zip(counts, middles)),
        sum_squares=sum(count * middle**2 for count, middle in zip(counts, middles)),
        bucket_limit=[low + (i + 1) * width for i in range(len(counts))],
        bucket=counts,
    )
    return [{"tag": printable(str(line.get("name")), lines=False), "histo": histogram}]
