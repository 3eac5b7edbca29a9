"""Images and histograms as fields of a line."""

import base64
import struct
import zlib
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.record import lines

LARGEST_SIDE = 256
BINS = 32
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}  # PNG's number of a colour type, by channels


def image(name: str, value: Any) -> dict[str, Any]:
    """Return an image's fields: a PNG of at most 256 pixels a side, of larger ones every nth pixel.

    Args:
        value: `[H, W]`, `[H, W, C]` or `[C, H, W]` with 1 to 4 channels; uint8, or floating from 0 to
            1, of which what lies outside is cut off and NaN is black.

    Raises ShapeError and DtypeError for others.
    """
    pixels = array(value)
    if pixels.ndim == 3 and pixels.shape[2] not in _COLOURS and pixels.shape[0] in _COLOURS:
        pixels = pixels.transpose(1, 2, 0)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[2] not in _COLOURS or not pixels.size:
        raise errors.ShapeError(
            f"log_image: {name}: expected [H, W], [H, W, C] or [C, H, W] with 1 to 4 channels, found "
            f"{list(np.shape(value))}"
        )
    height, width = pixels.shape[:2]
    pixels = pixels[:: -(-height // LARGEST_SIDE), :: -(-width // LARGEST_SIDE)]
    if np.issubdtype(pixels.dtype, np.floating):
        finite = np.nan_to_num(pixels.astype("float64"), nan=0.0, posinf=1.0, neginf=0.0)
        pixels = np.rint(finite.clip(0, 1) * 255).astype("uint8")
    elif pixels.dtype != np.uint8:
        raise errors.DtypeError(
            f"log_image: {name}: expected uint8, or floating numbers from 0 to 1, found {pixels.dtype}"
        )
    encoded = base64.b64encode(_png(np.ascontiguousarray(pixels))).decode()
    return {"name": name, "height": height, "width": width, "png": encoded}


def histogram(name: str, value: Any) -> dict[str, Any]:
    """Return a histogram's fields: counts of 32 equal parts from `low` to `high`, of NaN and of infinities.

    Raises DtypeError unless `value` is an array of real numbers.
    """
    found = array(value).reshape(-1)
    if found.dtype.kind not in "biuf" and found.dtype.name != "bfloat16":
        raise errors.DtypeError(f"log_histogram: {name}: expected real numbers, found {found.dtype}")
    found = found.astype("float64")
    finite = found[np.isfinite(found)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if np.isfinite(high - low):
        counts = np.histogram(finite, BINS, (low, high))[0]
    else:  # the ends lie too far apart for a difference
        counts = np.histogram(finite / 4, BINS, (low / 4, high / 4))[0]
    return {
        "name": name,
        "low": lines.written(low),
        "high": lines.written(high),
        "counts": counts.tolist(),
        "nan": int(np.isnan(found).sum()),
        "infinite": int(np.isinf(found).sum()),
    }


def array(value: Any) -> np.ndarray:
    """Return a value of either mode as an array."""
    return np.asarray(value.numpy() if callable(getattr(value, "numpy", None)) else value)


def _png(pixels: np.ndarray) -> bytes:
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), "uint8")  # each begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (
            (b"IHDR", header),
            (b"IDAT", zlib.compress(rows.tobytes(), 6)),
            (b"IEND", b""),
        )
    )
