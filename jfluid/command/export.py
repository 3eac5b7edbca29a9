"""`jfluid export`: conversion of a saved model to StableHLO, JAX or ONNX."""

import argparse
import os
import sys
from collections.abc import Sequence

from jfluid import errors
from jfluid.command import outputs
from jfluid.command.inspect import add_allow_argument, add_model_arguments
from jfluid.command.numbers import positive
from jfluid.exports.model import LoadedModel
from jfluid.printable import printable

_ENDINGS = {"stablehlo": ".stablehlo", "jax": ".jax", "onnx": ".onnx"}


def main(arguments: Sequence[str]) -> int:
    """Export a model and return the exit code.

    It is 1 where the model cannot be exported or the export differs, 2 where the model cannot be read.
    """
    parser = arguments_parser()
    options = parser.parse_args(arguments)
    if options.to == "onnx" and (options.longest or options.batch):
        parser.error("--longest and --batch are for stablehlo and jax: an ONNX model takes any batch and any length")
    name = os.path.basename(os.path.abspath(options.model)) + _ENDINGS[options.to]
    path = options.output or name
    try:
        model = LoadedModel(options.model, options.model_filename, options.params_filename, allow=options.allow)
        try:
            data, difference = _exported(model, options.to, options.longest, options.batch)
        finally:
            model.close()
        outputs.write(path, data, "--output")
    except (
        errors.UnsupportedError,
        errors.UntrustedOperatorError,
        errors.OpError,
        ImportError,
    ) as error:
        print(printable(f"jfluid export: {error}"), file=sys.stderr)
        return 1
    except (errors.JFluidError, OSError, ValueError) as error:
        print(printable(f"jfluid export: {error}"), file=sys.stderr)
        return 2
    from jfluid.exports import padded

    longest = -1 if options.to == "onnx" else options.longest
    feeds = ", ".join(f"{name} {dtype}{list(shape)}" for name, shape, dtype in padded.arguments(model.feeds, longest))
    fetches = ", ".join(f"{v.name} {v.np_dtype}{list(v.shape)}" for v in model.fetches)
    print(printable(f"{path}: {len(data)} bytes; ({feeds}) -> ({fetches})", lines=False))
    rows = options.batch or "2 and 3"
    print(f"differs from jfluid by {difference:.2g} at most, on batches of {rows} random rows")
    return 0


def _exported(model: LoadedModel, to: str, longest: int | None, batch: int | None) -> tuple[bytes, float]:
    """Return the bytes of the export, and its largest difference from the model."""
    if to == "onnx":
        try:
            import onnx  # noqa: F401
        except ModuleNotFoundError as error:
            raise ImportError(
                "models are exported as ONNX by the package onnx: pip install 'jfluid[export]'"
            ) from error
        from jfluid.exports.onnx_model import to_onnx

        return to_onnx(model)
    from jfluid.exports import stablehlo

    write = stablehlo.to_stablehlo if to == "stablehlo" else stablehlo.to_jax_artifact
    return write(model, longest, batch)


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid export",
        description="Writes a saved model in another format, and holds that against what the model gives here.",
        epilog="Exit codes: 0; 1 where the model cannot be exported, or the export differs (nothing is "
        "written then); 2 where it cannot be read.",
    )
    add_model_arguments(parser)
    add_allow_argument(parser)
    parser.add_argument("--to", required=True, choices=sorted(_ENDINGS), help="the format")
    parser.add_argument(
        "--longest",
        type=positive,
        metavar="N",
        help=(
            "rows of the longest sequence; models of sequences are exported as padded rows [batch, N, ...] and lengths "
            "(ONNX: any N)"
        ),
    )
    parser.add_argument(
        "--batch",
        type=positive,
        metavar="N",
        help="rows of a batch, for models with operators that need the number, such as recurrent ones (default: any)",
    )
    parser.add_argument("--output", metavar="FILE", help="where to (default: the folder's name)")
    return parser
