"""Decorators of Fluid: `wrapped_decorator`, `annotations`, and decorators of docstrings."""

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def wrap_decorator(decorator_func: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return `decorator_func` as a decorator that keeps name, docstring and signature of functions."""

    def decorate(func: F) -> F:
        decorated = decorator_func(func)

        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            return decorated(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


signature_safe_contextmanager = wrap_decorator(contextlib.contextmanager)


def deprecated(since: str, instead: str, extra_message: str = "") -> Callable[[F], F]:
    """Return a function that warns, by DeprecationWarning, each time it is called."""

    def decorate(func: F) -> F:
        text = f"{func.__name__} is deprecated since {since}; use {instead}. {extra_message}".strip()

        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return func(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def templatedoc(op_type: str | None = None) -> Callable[[F], F]:
    """Return the function as it is: `${...}` in its docstring is not filled in."""
    return lambda func: func


def autodoc(comment: str = "") -> Callable[[F], F]:
    """Return a decorator that gives a function without a docstring the docstring `comment`."""

    def decorate(func: F) -> F:
        func.__doc__ = func.__doc__ or comment
        return func

    return decorate


def get_logger(name: str, level: int | str, fmt: str | None = None) -> logging.Logger:
    """Return a logger with a level, which writes lines to stderr in the format `fmt`."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(fmt))
        logger.addHandler(handler)
    logger.propagate = False
    return logger
