"""The arguments of `DistributeTranspiler.transpile`, with checks."""

from dataclasses import dataclass
from typing import Any

from jfluid import errors
from jfluid.environment.endpoints import fault_of
from jfluid.ir.program import Program
from jfluid.transpiler.config import DistributeTranspilerConfig


@dataclass
class Request:
    """The arguments of `transpile`.

    Attributes:
        trainer_id: which trainer this process is.
        trainers: how many there are, or their endpoints.
    """

    config: DistributeTranspilerConfig
    trainer_id: int
    program: Program
    startup: Program
    pservers: str
    trainers: Any
    sync_mode: bool
    current_endpoint: str

    def endpoints(self) -> list[str]:
        """Return the trainers' endpoints.

        Raises ProgramError when `trainers` does not contain them.
        """
        given = self.trainers.split(",") if isinstance(self.trainers, str) else self.trainers
        if not isinstance(given, (list, tuple)) or not all(isinstance(e, str) and ":" in e for e in given):
            raise errors.ProgramError(
                f"trainers: mode {self.config.mode} needs all trainers' endpoints, such as "
                f'"10.0.0.1:6170,10.0.0.2:6170"; found {self.trainers!r}'
            )
        found = [e.strip() for e in given]
        if len(set(found)) < len(found):
            raise errors.ProgramError(f"trainers: an endpoint stands twice in {found}")
        if not 0 <= self.trainer_id < len(found):
            raise errors.ProgramError(f"trainer_id: expected 0 to {len(found) - 1}, found {self.trainer_id}")
        if found[self.trainer_id] != self.current_endpoint:
            raise errors.ProgramError(
                f"current_endpoint: trainer {self.trainer_id} of {found} is at "
                f"{found[self.trainer_id]}, found {self.current_endpoint!r}"
            )
        return found

    def servers(self) -> list[str]:
        """Return the servers' endpoints. Raises ProgramError unless `pservers` has endpoints."""
        given = self.pservers.split(",") if isinstance(self.pservers, str) else []
        found = [e.strip() for e in given]
        if wrong := fault_of(found):
            raise errors.ProgramError(
                'pservers: expected the servers\' endpoints, such as "10.0.0.1:6174,10.0.0.2:6174"; '
                f"found {self.pservers!r}: {wrong}"
            )
        return found

    def trainer_count(self) -> int:
        """Return how many trainers there are.

        Raises ProgramError when `trainers` is no number, or `trainer_id` none of them.
        """
        if isinstance(self.trainers, bool) or not isinstance(self.trainers, int) or self.trainers < 1:
            raise errors.ProgramError(
                f'trainers: mode "pserver" needs how many there are, a whole number above 0; found {self.trainers!r}'
            )
        if not 0 <= self.trainer_id < self.trainers:
            raise errors.ProgramError(f"trainer_id: expected 0 to {self.trainers - 1}, found {self.trainer_id}")
        return self.trainers
