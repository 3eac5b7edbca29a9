"""Which operators the tests execute. At the end of a run of all tests every registered operator
must be among them.

An operator counts when a test, in its own process, has called its function, in a step or directly,
and nothing was raised. Shape inference does not count. Each worker of a parallel run tells the
first process what it noted. A run of some tests only is not held to it.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from jfluid.compile.lowering.lower import Lowering
from jfluid.compile.runtime.host import Host
from jfluid.ops import registry, static_values

# They stand for readers and for the ends of a program; the engine replaces them by feeds and
# fetches.
REPLACED = {"create_double_buffer_reader", "create_py_reader", "feed", "fetch", "read"}


class Plugin:
    """Notes what is executed, in each process of a run; the first one holds all of it against the
    registry.
    """

    def __init__(self, config: pytest.Config):
        self._config = config
        self._executed: set[str] = set()
        self._missing: list[str] = []
        for op_type in registry.registered():
            definition = registry.get(op_type)
            if definition.fn is not None:
                noting = self._noting(definition.fn, functools.partial(_called, op_type))
                object.__setattr__(definition, "fn", noting)  # a definition is frozen
        # Operators with blocks have no function.
        Lowering.run = self._noting(Lowering.run, lambda lowering, env: [op.type for _, op, _ in lowering.items])
        Host.run = self._noting(Host.run, lambda host, segment, *others: [op.type for _, op, _ in segment.ops])

    def _noting(self, function: Callable[..., Any], operators: Callable[..., Iterable[str]]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noting(*arguments: Any, **keywords: Any) -> Any:
            found = function(*arguments, **keywords)
            self._executed.update(operators(*arguments, **keywords))
            return found

        return noting

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._executed.update(node.workeroutput["executed_operators"] if hasattr(node, "workeroutput") else ())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["executed_operators"] = sorted(self._executed)
        elif exitstatus == pytest.ExitCode.OK and self._runs_all_tests():
            self._missing = [
                t for t in registry.registered() if t not in self._executed | REPLACED and not registry.get(t).absent
            ]
            if self._missing:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _runs_all_tests(self) -> bool:
        option = self._config.option
        return self._config.args_source == pytest.Config.ArgsSource.TESTPATHS and not (
            option.keyword
            or option.markexpr
            or option.deselect
            or option.ignore
            or option.ignore_glob
            or option.collectonly
        )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._missing:
            terminalreporter.write_line(
                f"No test executes {', '.join(self._missing)}: every registered operator needs a test in tests/ops",
                red=True,
            )


def _called(op_type: str, *arguments: Any, **keywords: Any) -> Iterable[str]:
    return () if static_values.inference() is not None else (op_type,)
