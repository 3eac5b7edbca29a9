"""`paddle.check_import_scipy`."""


def check_import_scipy(OsName: str) -> None:
    """No effect: Fluid looks for a library that SciPy needs on Windows; SciPy is not used here."""
