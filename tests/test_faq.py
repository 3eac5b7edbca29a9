"""Each error has an entry in docs/faq.md, and its traceback says where."""

import importlib
import pickle
import pkgutil
import re
import traceback
from pathlib import Path

import pytest

import jfluid
from jfluid import errors
from tests.test_pages import _anchors

ROOT = Path(__file__).parent.parent
NAMED = {
    cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.JFluidError)
}


def every_class():
    """The errors of all modules that can be imported here."""
    for module in pkgutil.walk_packages(jfluid.__path__, "jfluid."):
        if module.name.rpartition(".")[2] in ("errors", "requests", "source"):
            importlib.import_module(module.name)
    found, waiting = set(), [errors.JFluidError]
    while waiting:
        found.add(cls := waiting.pop())
        waiting += cls.__subclasses__()
    return found


def test_every_error_has_an_entry():
    text = (ROOT / "docs" / "faq.md").read_text()
    known = every_class()
    assert set(NAMED.values()) < known
    for cls in known:
        page, _, anchor = cls.address.partition("#")
        assert page == "docs/faq.md" and anchor in _anchors(text), cls
    titles = set(re.findall(r"^## (\w+)$", text, re.MULTILINE))
    assert titles == set(NAMED)


def test_errors_of_other_modules_have_the_entry_of_their_kind():
    from jfluid.ps_server.errors import RollbackError

    assert RollbackError.address == errors.ServerError.address == "docs/faq.md#servererror"


@pytest.mark.parametrize("name", ["FeedError", "NoSuchFileError", "EOFException"])
def test_a_traceback_ends_with_the_address(name):
    error = NAMED[name]("what is wrong")
    assert str(error) == "what is wrong"
    address = f"What to do about it: docs/faq.md#{name.lower()}\n"
    for shown in (error, pickle.loads(pickle.dumps(error))):
        assert traceback.format_exception(shown)[-1] == address
    error.add_note("and more")  # notes of others stay
    assert traceback.format_exception(error)[-2:] == [address, "and more\n"]
