"""Files of the states of layers and optimizers, in Fluid's format: `path.pdparams` and `path.pdopt`.

Each is a pickle (protocol 2) of a dict of arrays by name, with a second dict under
`StructuredToParameterName@@` that tells the variables' own names.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.files.file_sets import Files, read_whole
from jfluid.files.pickled import load_arrays, save_arrays
from jfluid.ir.variable import Parameter, Variable

__all__ = ["load_dygraph", "save_dygraph"]

_NAMES = "StructuredToParameterName@@"
_PARAMETERS, _OPTIMIZER = ".pdparams", ".pdopt"


def save_dygraph(state_dict: Mapping[str, Any], model_path: str) -> None:
    """Save the `state_dict` of a layer or of an optimizer.

    A layer's state goes to `model_path`.pdparams, an optimizer's to `model_path`.pdopt. Real Fluid loads both files.
    Missing folders are created.

    Args:
        state_dict: as in Fluid, a state whose first value is a parameter is a layer's state.
        model_path: folder and file, without an ending.

    Raises DygraphError for an empty dict or a path that ends with a folder, TypeError for a value that is no dict,
    and for an entry that is no variable, array, number, text or dict of these, FileFormatError for an array of 4 GiB
    or more.
    """
    if not os.path.basename(model_path):
        raise errors.DygraphError(f"save_dygraph, model_path: expected folder/file, found {model_path!r}")
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            "save_dygraph: expected the result of layer.state_dict() or optimizer.state_dict(), found "
            f"{type(state_dict).__name__}"
        )
    if not state_dict:
        raise errors.DygraphError("save_dygraph: the state_dict is empty")
    suffix = _PARAMETERS if isinstance(next(iter(state_dict.values())), Parameter) else _OPTIMIZER
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in state_dict.items():
        if isinstance(value, Variable):
            names[name] = value.name
        values[name] = _plain(name, value)
    os.makedirs(os.path.dirname(model_path) or ".", exist_ok=True)
    save_arrays(model_path + suffix, values | {_NAMES: names})


def load_dygraph(model_path: str, keep_name_table: bool = False) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Load the states that `save_dygraph` has written, here or in real Fluid.

    Returns (state of the layer, state of the optimizer): arrays by name, for `set_dict`. The second is None without a
    file.

    Args:
        model_path: path as for `save_dygraph`, with or without ".pdparams".
        keep_name_table: leave the parameters' names in the state, under "StructuredToParameterName@@".

    Raises NoSuchFileError for a missing file, FileFormatError for a damaged file.
    """
    path = model_path.removesuffix(_PARAMETERS).removesuffix(_OPTIMIZER)
    folder, name = os.path.split(os.path.abspath(path))

    def read(files: Files) -> tuple[dict[str, Any], dict[str, Any] | None]:
        if not os.path.isfile(files.path(name + _PARAMETERS)):
            raise _no_file(path)
        parameters = load_arrays(files.path(name + _PARAMETERS))
        found = os.path.isfile(files.path(name + _OPTIMIZER))
        return parameters, load_arrays(files.path(name + _OPTIMIZER)) if found else None

    parameters, optimizer = read_whole(folder, read)
    if not keep_name_table:
        parameters.pop(_NAMES, None)
    return parameters, optimizer


def _no_file(path: str) -> errors.NoSuchFileError:
    return errors.NoSuchFileError(
        f"{path}{_PARAMETERS}: there is no such file; load_dygraph reads what save_dygraph and fluid.save "
        "write (fluid.load_program_state reads the files of save_params and save_persistables)"
    )


def _plain(name: str, value: Any) -> Any:
    """Return a value as it stands in the file."""
    if isinstance(value, Variable):
        return value.numpy()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(f"{name}, {key}", inner) for key, inner in value.items()}
    if value is None or isinstance(value, (np.ndarray, bool, int, float, str)):
        return value
    raise TypeError(
        f"save_dygraph, {name}: expected a variable, an array, a number or a dict of these, "
        f"found {type(value).__name__}"
    )
