"""What an Executor hands the programs to that it does not run alone."""
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jfluid import errors
from jfluid.parallel.program import DataParallel
from jfluid.scope import Scope


class Runner:
    """Runs programs of one kind."""

    def run(self, feed: Any, fetches: list[str], scope: Scope, owned: bool = False) -> list[Any]:
        """Run the program once; returns the fetches as `Executor._run` gives them without `numpy`.

        Args:
            owned: nobody writes to the feeds any more.
        """
        raise NotImplementedError

    def run_replicas(self, parallel: DataParallel, feed: Any, fetches: list[str], scope: Scope,
                     owned: bool = False) -> list[list[Any]]:
        """Run the program in replicas; returns of each fetch what each replica has. Raises UnsupportedError where there is
        nothing to divide."""
        raise errors.UnsupportedError("with_data_parallel: a server's program and its startup program have nothing to divide "
                                      "among devices: run the program itself")

    def counts(self) -> AbstractContextManager[Callable[[], dict[str, int]]]:
        """What a display of progress shows of the servers, newest numbers by name, while it is entered."""
        return nullcontext(dict)

    def ahead(self, batches: Iterable[Any], parallel: DataParallel | None = None) -> Iterable[Any]:
        """The batches, to be run one after the other, while what the next ones need comes from servers."""
        return batches
