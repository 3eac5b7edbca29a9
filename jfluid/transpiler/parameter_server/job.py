"""The programs of one job with parameter servers."""

import logging

from jfluid import errors
from jfluid.ir.program import Program
from jfluid.transpiler.parameter_server import geo, server, startup, trainer
from jfluid.transpiler.parameter_server.division import division
from jfluid.transpiler.parameter_server.placement import place
from jfluid.transpiler.parameter_server.ports import wait_until_listening
from jfluid.transpiler.parameter_server.updates import read_updates
from jfluid.transpiler.parameter_server.whole_tables import keep_whole
from jfluid.transpiler.request import Request

_LOG = logging.getLogger(__name__)


class ServerJob:
    """Decides the layout, and makes the programs from copies of the original ones: in any order, any number of times.

    Raises ProgramError or UnsupportedError as `DistributeTranspiler.transpile`.
    """

    def __init__(self, request: Request):
        if not isinstance(request.sync_mode, bool):
            raise errors.ProgramError(f"sync_mode: expected True or False, found {request.sync_mode!r}")
        _check_strategy(request)
        self._request = request
        self._origin, self._startup = request.program.clone(), request.startup.clone()
        keep_whole((self._origin, request.program), self._startup, request.config)
        self.placement = place(
            request.config,
            read_updates(self._origin.global_block()),
            request.servers(),
            request.trainer_count(),
            request.trainer_id,
            request.sync_mode,
            self._origin.random_seed,
        )
        self.division = division(self.placement, self._origin)
        self._trainer: Program | None = None
        self._geo = request.config.geo_sgd_mode
        if request.config.print_log:
            for endpoint in self.placement.endpoints:
                _LOG.info(
                    "server %s holds %s", endpoint, ", ".join(h.param for h in self.placement.at(endpoint)) or "nothing"
                )

    def trainer_program(self, wait_port: bool) -> Program:
        """Return the program of trainers; the first call rewrites the programs that `transpile` was given."""
        if self._trainer is None:
            if self._geo:
                geo.rewrite(self._request.program, self.placement)
                geo.startup(self._request.startup, self.placement)
            else:
                trainer.rewrite(self._request.program, self.placement)
                startup.of_trainer(self._request.startup, self.placement)
            self._trainer = self._request.program
            self._trainer.division = self._request.startup.division = self.division
        if wait_port and self.placement.config.wait_port:
            wait_until_listening(self.placement.endpoints)
        return self._trainer

    def server_program(self, endpoint: str) -> Program:
        """Return the program of one server."""
        self._check(endpoint)
        program = (
            geo.build(self.placement, endpoint)
            if self._geo
            else server.build(self.placement, endpoint, self._request.program.random_seed)
        )
        program.division = self.division
        return program

    def server_startup(
        self, endpoint: str, program: Program | None = None, startup_program: Program | None = None
    ) -> Program:
        """Return the startup program of one server, for its `program`."""
        program = program if program is not None else self.server_program(endpoint)
        self._check(endpoint)
        origin = self._startup if startup_program in (None, self._request.startup) else startup_program
        self._startup.random_seed = self._request.startup.random_seed
        return startup.of_server(origin, program, self.placement, endpoint)

    def _check(self, endpoint: str) -> None:
        if endpoint not in self.placement.endpoints:
            raise errors.ProgramError(
                f"endpoint: expected one of {', '.join(self.placement.endpoints)}, found {endpoint!r}"
                + errors.close_to(str(endpoint), self.placement.endpoints)
            )


def _check_strategy(request: Request) -> None:
    """Raise where settings exclude each other."""
    config, sync = request.config, request.sync_mode
    for field in ("geo_sgd_mode", "half_async", "completely_not_async", "runtime_split_send_recv", "enable_dc_asgd"):
        if sync and getattr(config, field):
            raise errors.ProgramError(f"{field}: it is for transpile(sync_mode=False), found sync_mode=True")
    for field in ("half_async", "completely_not_async", "enable_dc_asgd"):
        if config.geo_sgd_mode and getattr(config, field):
            raise errors.ProgramError(f"{field}: with geo_sgd_mode trainers update alone; set either to False")
    if config.geo_sgd_mode and config.geo_sgd_need_push_nums < 1:
        raise errors.ProgramError(
            "geo_sgd_need_push_nums: expected after how many steps differences are exchanged, at least "
            f"1; found {config.geo_sgd_need_push_nums}"
        )
    if config.completely_not_async and config.enable_dc_asgd:
        raise errors.ProgramError(
            "enable_dc_asgd: it corrects gradients that come late, and with completely_not_async none "
            "does; set either to False"
        )
