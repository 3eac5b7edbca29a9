"""Files that a subcommand writes, and texts of errors."""

from jfluid import errors
from jfluid.files.storage import atomic_write


def write(path: str, data: bytes, option: str) -> None:
    """Write a file as a whole. Raises DataError that names the option of the path."""
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise errors.DataError(
            f"{path}: the file cannot be written ({error.strerror}): name a file in a different folder with {option}"
        ) from None


def reason(error: Exception) -> str:
    """Return the text of an error; of an OSError the path and the system's reason."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
