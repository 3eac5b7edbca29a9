"""Names that NumPy had in 2020 and has dropped since, such as np.float (see `jfluid.compat.older_names`).

Sources: the release notes of NumPy 1.20, 1.24, 2.0 and 2.4. `np.bool` and `np.long` are there again
with another meaning (NumPy's own scalar types), and stay that.
"""

import math
from typing import Any

import numpy as np

# The name -> what means the same today, as scripts would write it.
TODAY: dict[str, tuple[str, Any]] = {
    "float": ("float", float),
    "int": ("int", int),
    "complex": ("complex", complex),
    "object": ("object", object),
    "str": ("str", str),
    "unicode": ("str", str),
    "math": ("math", math),
    "bool8": ("np.bool_", np.bool_),
    "int0": ("np.intp", np.intp),
    "uint0": ("np.uintp", np.uintp),
    "object0": ("np.object_", np.object_),
    "float_": ("np.float64", np.float64),
    "complex_": ("np.complex128", np.complex128),
    "cfloat": ("np.complex128", np.complex128),
    "singlecomplex": ("np.complex64", np.complex64),
    "longfloat": ("np.longdouble", np.longdouble),
    "clongfloat": ("np.clongdouble", np.clongdouble),
    "longcomplex": ("np.clongdouble", np.clongdouble),
    "string_": ("np.bytes_", np.bytes_),
    "bytes0": ("np.bytes_", np.bytes_),
    "unicode_": ("np.str_", np.str_),
    "str0": ("np.str_", np.str_),
    "void0": ("np.void", np.void),
    "Inf": ("np.inf", np.inf),
    "Infinity": ("np.inf", np.inf),
    "infty": ("np.inf", np.inf),
    "PINF": ("np.inf", np.inf),
    "NINF": ("-np.inf", -np.inf),
    "NaN": ("np.nan", np.nan),
    "NAN": ("np.nan", np.nan),
    "PZERO": ("0.0", 0.0),
    "NZERO": ("-0.0", -0.0),
    "product": ("np.prod", np.prod),
    "cumproduct": ("np.cumprod", np.cumprod),
    "alltrue": ("np.all", np.all),
    "sometrue": ("np.any", np.any),
    "round_": ("np.round", np.round),
    "trapz": ("np.trapezoid", np.trapezoid),
    "mat": ("np.asmatrix", np.asmatrix),
    "asscalar": ("x.item()", lambda a: np.asarray(a).item()),
    "alen": ("len(x)", lambda a: len(np.array(a, copy=None, ndmin=1))),
    "msort": ("np.sort(x, axis=0)", lambda a: np.sort(a, axis=0)),
    "asfarray": ("np.asarray(x, dtype=float)", lambda a, dtype=np.float64: _as_floats(a, dtype)),
    "in1d": (
        "np.isin(x.ravel(), y)",
        lambda ar1, ar2, assume_unique=False, invert=False: np.isin(
            np.asarray(ar1).ravel(), ar2, assume_unique, invert
        ),
    ),
    "issubclass_": (
        "issubclass",
        lambda arg1, arg2: isinstance(arg1, type) and issubclass(arg1, arg2),
    ),
    "AxisError": ("np.exceptions.AxisError", np.exceptions.AxisError),
    "ComplexWarning": ("np.exceptions.ComplexWarning", np.exceptions.ComplexWarning),
    "RankWarning": ("np.exceptions.RankWarning", np.exceptions.RankWarning),
    "TooHardError": ("np.exceptions.TooHardError", np.exceptions.TooHardError),
    "VisibleDeprecationWarning": (
        "np.exceptions.VisibleDeprecationWarning",
        np.exceptions.VisibleDeprecationWarning,
    ),
}


def _as_floats(a: Any, dtype: Any) -> Any:
    return np.asarray(a, dtype=dtype if np.issubdtype(dtype, np.inexact) else np.float64)
