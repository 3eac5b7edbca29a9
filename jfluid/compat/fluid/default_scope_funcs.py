"""`fluid.default_scope_funcs`: a stack of scopes for each thread."""

import threading
from collections.abc import Callable
from typing import Any

from jfluid.errors import ProgramError
from jfluid.scope import Scope, ScopeVariable

__all__ = [
    "enter_local_scope",
    "find_var",
    "get_cur_scope",
    "leave_local_scope",
    "scoped_function",
    "var",
]


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes = [Scope()]


_stack = _Stack()


def get_cur_scope() -> Scope:
    """Return the innermost scope of this thread's stack; at first one with nothing in it."""
    return _stack.scopes[-1]


def enter_local_scope() -> None:
    """Put a scope inside the current one on the stack."""
    _stack.scopes.append(get_cur_scope().new_scope())


def leave_local_scope() -> None:
    """Drop the current scope. Raises ProgramError where none was entered."""
    if len(_stack.scopes) == 1:
        raise ProgramError("leave_local_scope: no scope was entered in this thread")
    _stack.scopes.pop()
    get_cur_scope().drop_kids()


def var(name: str) -> ScopeVariable:
    """Return the variable of the current scope, made if need be."""
    return get_cur_scope().var(name)


def find_var(name: str) -> ScopeVariable | None:
    """Return the variable of the current scope or of one around it; None where there is none."""
    return get_cur_scope().find_var(name)


def scoped_function(func: Callable[[], Any]) -> None:
    """Call `func` within a new scope."""
    enter_local_scope()
    try:
        func()
    finally:
        leave_local_scope()
