"""The fleet of a job with parameter servers.

fleet.init(role_maker.PaddleCloudRoleMaker())
strategy = StrategyFactory.create_async_strategy()
fleet.distributed_optimizer(fluid.optimizer.Adam(0.001), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()                      # until all trainers have left
else:
    fleet.init_worker()
    exe.run(fleet.startup_program)
    exe.run(fleet.main_program, feed=..., fetch_list=[loss])
    fleet.stop_worker()
"""

from collections.abc import Iterable, Sequence
from typing import Any

from jfluid import distributed, errors, flags
from jfluid.distributed import checkpoint
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.trainer import row_count
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.distributed.wire import connections
from jfluid.executor import Executor
from jfluid.fleet.base import DistributedOptimizer, Fleet, Mode
from jfluid.fleet.parameter_server.strategies import DistributedStrategy, strategy_of
from jfluid.fleet.role_maker import MPISymetricRoleMaker, RoleMakerBase
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program, default_startup_program
from jfluid.ir.variable import Parameter, Variable
from jfluid.optimizer.base import Optimizer, ParamGrad
from jfluid.places import CPUPlace
from jfluid.scope import global_scope
from jfluid.transpiler import DistributeTranspiler
from jfluid.transpiler.config import DistributedMode, ServerRuntimeConfig

__all__ = ["DistributedTranspiler", "TranspilerOptimizer", "fleet"]


class DistributedTranspiler(Fleet):
    """The processes of a job with parameter servers. `fleet` is the one that scripts use.

    Attributes:
        main_program: once an optimizer has minimised a loss, the program that a trainer trains
            with; on a server, the program that serves.
        startup_program: the startup program of that. A trainer's takes the parameters from the
            servers.
    """

    def __init__(self) -> None:
        super().__init__(Mode.TRANSPILER)
        self.startup_program: Program | None = None
        self.main_program: Program | None = None
        self._executor: Executor | None = None
        self._origin_program: Program | None = None
        self._strategy: DistributedStrategy | None = None
        self._transpiler: DistributeTranspiler | None = None
        self._communicator: Any = None

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Find out the role of this process.

        Args:
            role_maker: PaddleCloudRoleMaker, UserDefinedRoleMaker or GeneralRoleMaker; None is
                MPISymetricRoleMaker, as in Fluid.

        Raises the errors of `Fleet.init` , and ProgramError for a job without parameter servers.
        """
        if role_maker is None:
            role_maker = MPISymetricRoleMaker()
        super().init(role_maker)
        if not self.server_num():
            raise errors.ProgramError(
                "fleet.init: this is the fleet of jobs with parameter servers, and the role maker tells "
                "of none; fluid.incubate.fleet.collective has the fleet of other jobs"
            )
        self._executor = Executor(CPUPlace())  # runs a server, and says goodbye for a trainer

    def _prepared(self, method: str, server: bool) -> tuple[Executor, Program]:
        """Return the executor and the main program, for a method of one role.

        Raises ProgramError in the other role, and before a loss was minimised.
        """
        if self.is_server() != server:
            roles = ("server", "trainer") if server else ("trainer", "server")
            raise errors.ProgramError(
                f"fleet.{method}: it is for a {roles[0]}, and this process is a {roles[1]}: ask fleet.is_server() first"
            )
        if self.main_program is None or self._executor is None:
            raise errors.ProgramError(f"fleet.{method}: minimize a loss with fleet.distributed_optimizer first")
        return self._executor, self.main_program

    # Servers
    def init_server(self, model_dir: str | None = None) -> None:
        """Initialize this server's parameters, from a saved model if `model_dir` is given and not empty.

        Raises ProgramError on a trainer and before a loss was minimised, FileFormatError for a
        model that does not fit.
        """
        executor, program = self._prepared("init_server", server=True)
        executor.run(self.startup_program)
        if model_dir:
            checkpoint.load(model_dir, program, executor, global_scope())

    def run_server(self) -> None:
        """Serve until all trainers have left.

        Raises ProgramError on a trainer and before a loss was minimised.
        """
        executor, program = self._prepared("run_server", server=True)
        executor.run(program)

    # Trainers
    def init_worker(self) -> None:
        """Start the communicator, which sends gradients to the servers and receives parameters, as the strategy says.

        Raises ProgramError on a server, before a loss was minimised, and when it was started
        already.
        """
        _, program = self._prepared("init_worker", server=False)
        if self._communicator is not None:
            raise errors.ProgramError("fleet.init_worker: the communicator runs already; fleet.stop_worker ends it")
        # `strategy_of` accepts no strategy without a mode
        assert self._strategy is not None and self._strategy.mode is not None
        envs = self._strategy.get_trainer_runtime_config().get_communicator_flags()
        communicator = Communicator(program, self._strategy.mode, self._communicator_arguments(), envs)
        communicator.start()
        self._communicator = communicator

    def _communicator_arguments(self) -> dict[str, Any] | None:
        """Return the settings of a communicator, without the program."""
        assert self._strategy is not None and self._transpiler is not None
        if self._strategy.mode == DistributedMode.SYNC:
            return {"pserver_endpoints": self.server_endpoints(), "trainer_id": self.worker_index()}
        if self._strategy.mode == DistributedMode.GEO:
            return {
                "push_vars": self._transpiler._exchanged(),
                "trainers": self.worker_num(),
                "push_nums": self._strategy.get_program_config().geo_sgd_need_push_nums,
            }
        return None

    def barrier_worker(self) -> None:
        """Wait, at the servers, until all trainers that have not left have called this.

        Raises ProgramError on a server and before a loss was minimised, ServerError when a server
        does not answer.
        """
        self._connection("barrier_worker").client.barrier("fleet.barrier_worker")

    def table_rows(self) -> dict[str, int]:
        """Return the number of rows of each table over all servers, by name.

        A distributed table has the rows that trainers have shown.

        Raises ProgramError on a server and before a loss was minimised, ServerError when a server
        does not answer.
        """
        return row_count.table_rows(self._connection("table_rows").client)

    def _connection(self, method: str) -> Any:
        """Return this trainer's connection to the servers."""
        executor, program = self._prepared(method, server=False)
        read = trainer_program.read(program)
        assert read is not None  # a trainer's program
        return connections.connect(read, executor)

    def stop_worker(self) -> None:
        """Stop the communicator, which first sends its pending gradients, and leave the servers.

        After it `fleet.init` begins another job. Raises ProgramError on a server and before a loss
        was minimised.
        """
        executor, program = self._prepared("stop_worker", server=False)
        communicator, self._communicator = self._communicator, None
        try:
            if communicator is not None:
                communicator.stop()
        finally:
            distributed.farewell(program)
            executor.close()

    # The optimizer
    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> "TranspilerOptimizer":
        """Return an optimizer that trains with parameter servers: a TranspilerOptimizer of these arguments.

        Raises ProgramError before `fleet.init`, and what TranspilerOptimizer raises.
        """
        self.worker_num()
        self._optimizer = found = TranspilerOptimizer(optimizer, strategy, self)
        return found

    def _transpile(self, strategy: DistributedStrategy, main: Program, startup: Program) -> None:
        """Make the programs of this process."""
        strategy.check_program_config()  # the fields may have changed since
        strategy.check_trainer_runtime_config()
        config = strategy.get_program_config()
        deadline = strategy.get_trainer_runtime_config().runtime_configs["rpc_deadline"]
        flags.set_flags({"FLAGS_rpc_deadline": deadline})  # by which all calls of this process go
        server = self.is_server()
        endpoints = self._role.get_pserver_endpoints()
        transpiler = DistributeTranspiler(config)
        origin = main.clone()
        # A server's programs are the same for all trainers, and the server's number may be larger than every
        # trainer's.
        transpiler.transpile(
            0 if server else self.worker_index(),
            main,
            ",".join(endpoints),
            self.worker_num(),
            sync_mode=config.sync_mode,
            startup_program=startup,
        )
        if server:
            programs = transpiler.get_pserver_programs(endpoints[self.server_index()])
            _note_threads(programs[0], strategy.get_server_runtime_config())
        else:
            programs = transpiler.get_trainer_program(wait_port=config.wait_port), startup
        self.main_program, self.startup_program = programs
        self._strategy, self._transpiler, self._origin_program = strategy, transpiler, origin

    # Files
    def _saved(self, method: str, executor: Any, main_program: Any) -> Program:
        """Return the program of this process that knows which server holds which variables.

        Raises TypeError and ProgramError.
        """
        if not isinstance(executor, Executor):
            raise TypeError(f"fleet.{method}, executor: expected an Executor, found {type(executor).__name__}")
        if main_program is not None and not isinstance(main_program, Program):
            raise TypeError(f"fleet.{method}, main_program: expected a Program, found {type(main_program).__name__}")
        return self._prepared(method, server=False)[1]

    def save_inference_model(
        self,
        executor: Executor,
        dirname: str,
        feeded_var_names: Sequence[str],
        target_vars: Sequence[Variable],
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> Any:
        """Save the inference part of a program, as `fluid.io.save_inference_model` does, with the servers' parameters.

        Args:
            executor, dirname, feeded_var_names, target_vars, export_for_deployment: those of
                `fluid.io.save_inference_model`.
            main_program: a program whose look-ups are still in the program itself. When it is None
                or `fleet.main_program`, the one in which the loss was minimised, before it was
                divided.

        Raises TypeError for arguments of a wrong type, ProgramError on a server and before a loss
        was minimised.
        """
        trainer = self._saved("save_inference_model", executor, main_program)
        model = self._origin_program if main_program in (None, trainer) else main_program
        return checkpoint.save_inference_model(
            executor,
            dirname,
            feeded_var_names,
            target_vars,
            main_program=trainer,
            origin_program=model,
            export_for_deployment=export_for_deployment,
        )

    def save_persistables(self, executor: Executor, dirname: str, main_program: Program | None = None) -> None:
        """Save all that the servers hold, so that `init_server(dirname)` continues with it.

        Args:
            main_program: a trainer's program; `fleet.main_program` when None.

        Raises TypeError for arguments of a wrong type, ProgramError on a server and before a loss
        was minimised.
        """
        trainer = self._saved("save_persistables", executor, main_program)
        checkpoint.save_persistables(executor, dirname, main_program if main_program is not None else trainer)

    def save_one_table(self, name: str, dirname: str) -> None:
        """Save one table, with the rows' optimizer state, to a folder.

        Args:
            name: the parameter that the table is.
            dirname: as that of `save_persistables`.

        Raises ProgramError for a name that is none of a table, on a server and before a loss was
        minimised.
        """
        executor, program = self._prepared("save_one_table", server=False)
        checkpoint.save_one_table(executor, name, dirname, program)

    def load_one_table(self, name: str, dirname: str) -> None:
        """Restore one table from the folder of `save_one_table`.

        Arguments and errors are the same.
        """
        executor, program = self._prepared("load_one_table", server=False)
        checkpoint.load_one_table(executor, name, dirname, program)

    def shrink(self, name: str | None, age: int) -> int:
        """Drop rows that no update has touched for a while; returns how many.

        Args:
            name: a table; None for all tables.
            age: rows without an update in the table's last `age` updates are dropped.

        Raises ProgramError on a server and before a loss was minimised.
        """
        executor, program = self._prepared("shrink", server=False)
        return checkpoint.shrink(executor, name, age, program)


def _note_threads(program: Program, config: ServerRuntimeConfig) -> None:
    (listen,) = [op for op in program.global_block().ops if op.type == "listen_and_serv"]
    for field in config.FIELDS:
        listen.set_attr(field.removeprefix("_"), getattr(config, field))


fleet = DistributedTranspiler()


class TranspilerOptimizer(DistributedOptimizer):
    """An optimizer that trains with parameter servers.

    Args:
        optimizer: an Optimizer, which computes the updates on the servers (with GEO in the
            trainers).
        strategy: made by StrategyFactory, or a DistributeTranspilerConfig, whose sync_mode,
            runtime_split_send_recv, half_async and geo_sgd_mode decide which strategy it is.
            SyncStrategy when None.
        owner: the fleet; `fleet` when None.

    Raises TypeError for arguments of wrong types (16-bit optimizers are among them), ProgramError
    for a config that contradicts itself.
    """

    def __init__(self, optimizer: Any, strategy: Any = None, owner: DistributedTranspiler | None = None):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer: expected an Optimizer, found {type(optimizer).__name__}")
        super().__init__(optimizer, strategy_of(strategy))
        self._fleet = owner if owner is not None else fleet

    def minimize(
        self,
        loss: Variable,
        scopes: Any = None,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
    ) -> tuple[list[Operator], list[ParamGrad]]:
        """Append gradients and updates, and divide the programs between trainers and servers.

        Afterwards this process runs `fleet.startup_program`, then `fleet.main_program`. A trainer
        waits until all servers listen, unless the strategy's program config says `wait_port` False.

        Args:
            scopes: must be None: programs run in the scope that is given to the Executor.

        Returns:
            The update operators, and pairs of parameters and gradients.

        Raises TypeError for a list of losses or programs, ProgramError before `fleet.init`,
        TimeoutError when servers do not listen within FLAGS_rpc_deadline, and the errors of
        `DistributeTranspiler.transpile`.
        """
        if not isinstance(loss, Variable):
            raise TypeError(f"minimize, loss: expected one Variable, found {type(loss).__name__}")
        if startup_program is not None and not isinstance(startup_program, Program):
            raise TypeError(f"minimize, startup_program: expected one Program, found {type(startup_program).__name__}")
        if scopes is not None:
            raise errors.UnsupportedError("minimize, scopes: programs run in the scope that Executor.run is given")
        self._fleet.worker_num()  # before anything changes
        startup = startup_program if startup_program is not None else default_startup_program()
        result = self._optimizer.minimize(loss, startup, parameter_list, no_grad_set)
        self._fleet._transpile(self._strategy, loss.block.program, startup)
        return result
