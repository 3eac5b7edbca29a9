"""`fluid.layers.utils`: nested structures (lists, tuples, named tuples, dicts) of variables.

Dicts are gone through in the order of their keys, as in Fluid.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jfluid.ir.variable import Variable


def convert_to_list(value: Any, n: int, name: str, dtype: Any = int) -> list[Any]:
    """Return a list of `n` numbers: the given numbers, or a single number repeated.

    Raises ValueError, which calls it `name`.
    """
    if isinstance(value, dtype):
        return [value] * n
    try:
        found = list(value)
        for item in found:
            dtype(item)
    except (TypeError, ValueError):
        found = []
    if len(found) != n:
        raise ValueError(f"{name}: expected a number of type {dtype.__name__}, or {n} such numbers, found {value!r}")
    return found


def is_sequence(seq: Any) -> bool:
    """Return whether it is a structure: a dict, or a sequence that is no text."""
    return isinstance(seq, (dict, Sequence)) and not isinstance(seq, (str, bytes))


def _items(structure: Any) -> list[Any]:
    if isinstance(structure, dict):
        return [structure[key] for key in sorted(structure)]
    return list(structure)


def flatten(nest: Any) -> list[Any]:
    """Return all entries of a structure, in order."""
    if not is_sequence(nest):
        return [nest]
    return [entry for item in _items(nest) for entry in flatten(item)]


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """Return the entries of `flat_sequence` in a structure like the given one.

    Raises TypeError where they are no sequence, ValueError where they are not as many as `structure` has.
    """
    if not is_sequence(flat_sequence):
        raise TypeError(f"pack_sequence_as, flat_sequence: expected a sequence, found {flat_sequence!r}")
    wanted = len(flatten(structure))
    if len(flat_sequence) != wanted:
        raise ValueError(f"pack_sequence_as: the structure has {wanted} entries, flat_sequence {len(flat_sequence)}")
    return _packed(structure, iter(flat_sequence))


def _packed(structure: Any, entries: Iterator[Any]) -> Any:
    if not is_sequence(structure):
        return next(entries)
    if isinstance(structure, dict):
        found = {key: _packed(structure[key], entries) for key in sorted(structure)}
        return type(structure)((key, found[key]) for key in structure)
    items = [_packed(item, entries) for item in structure]
    return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)


def map_structure(func: Callable[..., Any], *structure: Any) -> Any:
    """Return a structure like the first structure, with `func` applied to corresponding entries.

    Raises ValueError for structures of different lengths.
    """
    entries = zip(*(flatten(s) for s in structure), strict=True)
    return pack_sequence_as(structure[0], [func(*each) for each in entries])


def hold_mutable_vars(structure: Any) -> bool:
    """Return whether an item of it is a structure, too."""
    return any(is_sequence(item) for item in structure)


def copy_mutable_vars(structure: Any) -> Any:
    """Return the same entries in new lists and dicts."""
    return pack_sequence_as(structure, flatten(structure))


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Raise ValueError unless two structures are nested alike.

    With `check_types`, different types raise TypeError.
    """
    if is_sequence(nest1) != is_sequence(nest2) or len(flatten(nest1)) != len(flatten(nest2)):
        raise ValueError(f"assert_same_structure: {nest1!r} and {nest2!r} are nested differently")
    if not is_sequence(nest1):
        return
    if check_types and type(nest1) is not type(nest2):
        raise TypeError(f"assert_same_structure: {type(nest1).__name__} and {type(nest2).__name__} differ")
    if isinstance(nest1, dict) and isinstance(nest2, dict) and set(nest1) != set(nest2):
        raise ValueError(f"assert_same_structure: keys differ: {[*nest1]} and {[*nest2]}")
    for one, other in zip(_items(nest1), _items(nest2), strict=True):
        assert_same_structure(one, other, check_types)


def _is_symmetric_padding(padding: Sequence[int], data_dim: int) -> bool:
    """Return True if each dimension has equal padding at both ends."""
    return len(padding) == data_dim or padding[::2] == padding[1::2]


def _contain_var(list_or_tuple: Sequence[Any]) -> bool:
    """Return True if a Variable is among the items."""
    return any(isinstance(item, Variable) for item in list_or_tuple)
