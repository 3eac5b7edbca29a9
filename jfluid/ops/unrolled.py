"""Numbers of repetitions that are written out while an operator is traced."""

from jfluid import errors

MOST = 1024


def times(op_type: str, name: str, value: int) -> int:
    """Return an attribute that says how often something is repeated.

    Raises ProgramError for more than `MOST`: tracing takes time for each, whatever the program's size.
    """
    if value > MOST:
        raise errors.ProgramError(f"{op_type}: {name} is {value}, expected at most {MOST}")
    return value
