"""`GraphWrapper`: a program with its feeds and fetches, for `fluid.contrib.slim`."""

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors, io
from jfluid.compiler import BuildStrategy, CompiledProgram
from jfluid.executor import Executor
from jfluid.feeding.data_feeder import DataFeeder
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program, program_guard
from jfluid.ir.variable import Parameter, Variable
from jfluid.scope import Scope

__all__ = ["GraphWrapper", "OpWrapper", "SlimGraphExecutor", "VarWrapper"]

Nodes = Mapping[str, str] | Iterable[tuple[str, str]] | None
_UPDATES = frozenset("momentum lars_momentum adagrad adam adamax dpsgd decayed_adagrad adadelta rmsprop".split())


class VarWrapper:
    """A variable of a graph; two of one name are equal."""

    def __init__(self, var: Variable, graph: "GraphWrapper"):
        self._var, self._graph = var, graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VarWrapper) and other.name() == self.name()

    def __hash__(self) -> int:
        return hash(self.name())

    def name(self) -> str:
        return self._var.name

    def shape(self) -> tuple[int, ...]:
        return tuple(self._var.shape)

    def set_shape(self, shape: Sequence[int]) -> None:
        """Set the shape that the program declares."""
        self._var.desc.set_shape(shape)

    def inputs(self) -> "list[OpWrapper]":
        """Return the operators that read it."""
        return [op for op in self._graph.ops() if self.name() in op._op.input_arg_names]

    def outputs(self) -> "list[OpWrapper]":
        """Return the operators that write it."""
        return [op for op in self._graph.ops() if self.name() in op._op.output_arg_names]


class OpWrapper:
    """An operator of a graph."""

    def __init__(self, op: Operator, graph: "GraphWrapper"):
        self._op, self._graph = op, graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpWrapper) and other._op is self._op

    def __hash__(self) -> int:
        return id(self._op)

    def all_inputs(self) -> list[VarWrapper]:
        """Return the variables that it reads."""
        return [self._graph.var(n) for n in self._op.input_arg_names]

    def all_outputs(self) -> list[VarWrapper]:
        """Return the variables that it writes."""
        return [self._graph.var(n) for n in self._op.output_arg_names]

    def idx(self) -> int:
        """Return its place in its block."""
        return self._op.idx

    def type(self) -> str:
        return self._op.type

    def is_bwd_op(self) -> bool:
        """Return whether it computes a gradient."""
        return self._op.type.endswith("_grad")

    def is_opt_op(self) -> bool:
        """Return whether it updates a parameter; Fluid does not count `sgd`."""
        return self._op.type in _UPDATES

    def inputs(self, name: str) -> list[VarWrapper]:
        """Return the variables of an input slot."""
        return [self._graph.var(n) for n in self._op.input(name)]

    def outputs(self, name: str) -> list[VarWrapper]:
        """Return the variables of an output slot."""
        return [self._graph.var(n) for n in self._op.output(name)]

    def set_attr(self, key: str, value: Any) -> None:
        self._op.set_attr(key, value)

    def attr(self, name: str) -> Any:
        return self._op.attr(name)


class GraphWrapper:
    """Program with the user's names for its feeds and fetches.

    Args:
        program: the program; a new one when None.
        in_nodes, out_nodes: names of variables by names of the user's, as a dict or as pairs. "loss" in
            `out_nodes` is the loss of training.

    Attributes:
        program, in_nodes, out_nodes: the same.
        persistables: the variables that are kept from step to step, by name.
        teacher_persistables: the persistable variables that `merge` brought.
        compiled_graph: the result of `compile`; None before.
    """

    def __init__(self, program: Program | None = None, in_nodes: Nodes = None, out_nodes: Nodes = None):
        self.program = Program() if program is None else program
        self.persistables = {v.name: v for v in self.program.list_vars() if v.persistable}
        self.teacher_persistables: dict[str, Variable] = {}
        self.compiled_graph: CompiledProgram | None = None
        self.in_nodes, self.out_nodes = OrderedDict(in_nodes or ()), OrderedDict(out_nodes or ())

    # Contents
    def all_parameters(self) -> list[VarWrapper]:
        return [VarWrapper(p, self) for p in self.program.all_parameters()]

    def is_parameter(self, var: VarWrapper) -> bool:
        return isinstance(var._var, Parameter)

    def is_persistable(self, var: VarWrapper) -> bool:
        return bool(var._var.persistable)

    def ops(self) -> list[OpWrapper]:
        """Return the operators of all blocks."""
        return [OpWrapper(op, self) for block in self.program.blocks for op in block.ops]

    def vars(self) -> list[VarWrapper]:
        """Return the variables of all blocks."""
        return [VarWrapper(v, self) for v in self.program.list_vars()]

    def var(self, name: str) -> VarWrapper:
        """Return a variable of the global block. Raises ProgramError where it has none."""
        return VarWrapper(self.program.global_block().var(name), self)

    def pre_ops(self, op: OpWrapper) -> list[OpWrapper]:
        """Return the producers of an operator's inputs, once for each variable."""
        return [p for p in self.ops() for n in op._op.input_arg_names if n in p._op.output_arg_names]

    def next_ops(self, op: OpWrapper) -> list[OpWrapper]:
        """Return the consumers of an operator's outputs, once for each variable."""
        return [p for p in self.ops() for n in op._op.output_arg_names if n in p._op.input_arg_names]

    def get_param_by_op(self, op: OpWrapper) -> list[VarWrapper]:
        """Return the parameters that an operator reads. Raises ProgramError where there are none."""
        found = [v for v in op.all_inputs() if self.is_parameter(v)]
        if not found:
            raise errors.ProgramError(f"get_param_by_op: {op.type()} reads no parameter")
        return found

    def numel_params(self) -> int:
        """Return the number of elements of all parameters."""
        return sum(int(np.prod(p.shape())) for p in self.all_parameters())

    def flops(self, only_conv: bool = False) -> int:
        """Return the number of floating-point operations for a sample.

        Each product of convolutions and of `mul` counts as two, and each element that pooling, relu, sigmoid and batch
        norm read as one.

        Args:
            only_conv: count convolutions alone.
        """
        return sum(_flops(op, only_conv) for op in self.ops())

    # Results
    def clone(self, for_test: bool = False) -> "GraphWrapper":
        """Return a graph of a copy of the program; `for_test` as of `Program.clone`."""
        return GraphWrapper(self.program.clone(for_test), self.in_nodes, self.out_nodes)

    def compile(self, for_parallel: bool = True, for_test: bool = False, mem_opt: bool = False) -> None:
        """Make `compiled_graph`, which `SlimGraphExecutor` runs; again after the program has changed.

        Args:
            for_parallel: whether it runs in replicas.
            for_test: whether it has no loss.
            mem_opt: has no effect: XLA plans the memory.
        """
        self.compiled_graph = CompiledProgram(self.program)
        if for_parallel:
            loss = None if for_test else self.out_nodes["loss"]
            self.compiled_graph.with_data_parallel(loss_name=loss, build_strategy=BuildStrategy())

    def merge(self, graph: "GraphWrapper") -> None:
        """Append the operators of a graph, such as a teacher's graph. Variables of the same name become one variable.

        Parameters that come are variables that training leaves alone.
        """
        block = self.program.global_block()
        for var in graph.program.list_vars():
            if var.persistable:
                self.teacher_persistables[var.name] = var
            twin = block.clone_variable(var, force_persistable=False)
            twin.stop_gradient = var.stop_gradient
        for op in graph.ops():
            block.append_op(op.type(), op._op.inputs, op._op.outputs, op._op.attrs)

    def get_optimize_graph(
        self, optimizer: Any, place: Any, scope: Scope, no_grad_var_names: Sequence[str] = ()
    ) -> "GraphWrapper | None":
        """Return a graph for training, with gradients and updates; their state is made in `scope`.

        None where `out_nodes` has neither "loss" nor "cost".

        Args:
            optimizer: its `minimize` is called.
            place: where state is made.
            scope: of the state.
            no_grad_var_names: variables that get no gradient.
        """
        graph, startup = self.clone(), Program()
        name = graph.out_nodes.get("loss", graph.out_nodes.get("cost"))
        if name is None:
            return None
        with program_guard(graph.program, startup):
            if isinstance(optimizer._learning_rate, Variable):
                optimizer._learning_rate_map[graph.program] = optimizer._learning_rate
            optimizer.minimize(graph.var(name)._var, no_grad_set=set(no_grad_var_names))
        Executor(place).run(startup, scope=scope)
        return graph

    # Files
    def save_model(self, path: str, exe: "SlimGraphExecutor") -> None:
        """Save an inference model, as `__model__` and `__params__`, of all in_nodes and out_nodes."""
        self._save(
            path,
            exe,
            self.in_nodes.values(),
            self.out_nodes.values(),
            "__model__",
            program_only=False,
        )

    def save_infer_model(
        self,
        path: str,
        exe: "SlimGraphExecutor",
        in_out: Sequence[Sequence[str]],
        program_only: bool = False,
    ) -> None:
        """Save an inference model, as `__model__.infer` and `__params__`.

        Args:
            path: the folder.
            exe: the executor.
            in_out: the names of feeds and of fetches.
            program_only: leave out the parameters.
        """
        self._save(path, exe, in_out[0], in_out[1], "__model__.infer", program_only)

    def _save(
        self,
        path: str,
        exe: "SlimGraphExecutor",
        feeds: Iterable[str],
        fetches: Iterable[str],
        model: str,
        program_only: bool,
    ) -> None:
        program = self.program.clone()
        io.save_inference_model(
            path,
            list(feeds),
            [program.global_block().var(n) for n in fetches],
            exe.exe,
            program,
            model_filename=model,
            params_filename="__params__",
            program_only=program_only,
        )

    def save_persistables(self, path: str, exe: "SlimGraphExecutor") -> None:
        """Save persistable variables, except the teacher's variables, each variable in a file."""
        for v in self.program.list_vars():
            if v.persistable:
                self.persistables.setdefault(v.name, v)
        found = [v for v in self._own() if v.name not in self.teacher_persistables]
        io.save_vars(exe.exe, path, self.program, vars=found)

    def load_persistables(self, path: str, exe: "SlimGraphExecutor") -> None:
        """Load the variables that the folder has files of."""
        found = [v for v in self._own() if os.path.exists(os.path.join(path, v.name))]
        io.load_vars(exe.exe, path, self.program, vars=found)

    def _own(self) -> list[Variable]:
        return [v for n, v in self.persistables.items() if "reader" not in n and "double_buffer" not in n]

    # After parameters were pruned
    def update_param_shape(self, scope: Scope) -> None:
        """Declare parameters in the shapes of their values in the scope.

        Raises UninitializedError where it lacks one.
        """
        for param in self.all_parameters():
            if (found := scope.find_var(param.name())) is None:
                raise errors.UninitializedError(
                    f"update_param_shape: the scope has no {param.name()}: run the startup program there"
                )
            param.set_shape(np.array(found.get_tensor()).shape)

    def infer_shape(self) -> None:
        """Declare all results in the shapes that follow from the parameters'."""
        for op in self.ops():
            if op.type() != "conditional_block":
                op._op.infer_shape()

    def update_groups_of_conv(self) -> None:
        """Set the groups of depthwise convolutions to the number of their filters."""
        for op in self.ops():
            if op.type() in ("depthwise_conv2d", "depthwise_conv2d_grad"):
                op.set_attr("groups", op.inputs("Filter")[0].shape()[0])


def _flops(op: OpWrapper, only_conv: bool) -> int:
    """Return the operations of one operator for one sample."""
    if op.type() in ("conv2d", "depthwise_conv2d"):
        filters, channels, *kernel = op.inputs("Filter")[0].shape()
        size = op.outputs("Output")[0].shape()[2:]
        # as Fluid counts: a filter's channels are divided by the groups once more
        products = np.prod(kernel) * channels // op.attr("groups") + bool(op.inputs("Bias"))
        return int(2 * np.prod(size) * filters * products)
    if only_conv:
        return 0
    if op.type() == "pool2d":
        return int(np.prod(op.outputs("Out")[0].shape()[1:]) * op.attr("ksize")[0] ** 2)
    if op.type() == "mul":
        rows, columns = op.inputs("X")[0].shape()[:2]
        return 2 * max(rows, 1) * columns * op.inputs("Y")[0].shape()[1]
    if op.type() in ("relu", "sigmoid", "batch_norm"):
        rows, *others = op.inputs("X")[0].shape()
        return int(max(rows, 1) * np.prod(others))
    return 0


class SlimGraphExecutor:
    """Executor of `SlimGraph` objects.

    Args:
        place: the device.

    Attributes:
        exe: the Executor.
    """

    def __init__(self, place: Any):
        self.exe, self.place = Executor(place), place

    def run(self, graph: GraphWrapper, scope: Scope, data: Any = None) -> list[Any]:
        """Run a graph once; return the values of the out_nodes.

        Args:
            graph: the graph; the compiled graph if `compile` was called.
            scope: of the variables.
            data: a list of samples, whose fields are the in_nodes in order, or a list of feeds; None
                where the program reads by itself.

        Raises TypeError for an argument that is no GraphWrapper.
        """
        if not isinstance(graph, GraphWrapper):
            raise TypeError(f"SlimGraphExecutor.run: expected a GraphWrapper, found {type(graph).__name__}")
        feed = data
        if data is not None and not isinstance(data[0], dict):
            names = list(graph.in_nodes.values())
            feed = DataFeeder(names, self.place, graph.program).feed(data)
        program = graph.program if graph.compiled_graph is None else graph.compiled_graph
        fetches = list(graph.out_nodes.values())
        return list(self.exe.run(program, feed, fetches, scope=scope))
