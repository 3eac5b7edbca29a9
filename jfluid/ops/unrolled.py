"""Numbers of repetitions that are written out while an operator is traced."""

from jfluid import errors

MOST = 1024


def times(op_type: str, name: str, value: int) -> int:
    """Return `value`, the repetition count in attribute `name`.

    Raises ProgramError for more than `MOST`: each repetition takes tracing time, for any program size.
    """
    if value > MOST:
        raise errors.ProgramError(f"{op_type}: {name} is {value}, expected at most {MOST}")
    return value
