"""Graphs of programs for Fluid's passes and PaddleSlim: `IrGraph(core.Graph(program.desc))`.

In Fluid a graph is built from a program, rewritten and converted to a program again. Here it holds a
copy of the program, which passes rewrite.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jfluid.ir import graphviz
from jfluid.ir.descs import OpDesc, ProgramDesc, VarDesc
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable

__all__ = ["Graph", "IrGraph", "IrNode", "IrOpNode", "IrVarNode"]


class Graph:
    """Copy of a program, for `IrGraph` and `CompiledProgram`.

    Args:
        desc: `program.desc`.

    Raises TypeError for another value.
    """

    def __init__(self, desc: ProgramDesc):
        if not isinstance(desc, ProgramDesc):
            raise TypeError(f"Graph: expected program.desc, found {type(desc).__name__}")
        self.program: Program = desc.described.clone()


class IrOpNode:
    """Operator node of a graph."""

    def __init__(self, op: Operator, graph: "IrGraph"):
        self.node, self._graph = op, graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IrOpNode) and other.node is self.node

    def __hash__(self) -> int:
        return id(self.node)

    def name(self) -> str:
        """Return the operator's type."""
        return self.node.type

    def id(self) -> int:
        """Return a number that no other node has."""
        return id(self.node)

    def is_op(self) -> bool:
        return True

    def is_var(self) -> bool:
        return False

    def op(self) -> OpDesc:
        """Return the operator's description."""
        return OpDesc(self.node)

    def input(self, name: str) -> list[str]:
        return self.node.input(name)

    def output(self, name: str) -> list[str]:
        return self.node.output(name)

    def input_arg_names(self) -> list[str]:
        return self.node.input_arg_names

    def output_arg_names(self) -> list[str]:
        return self.node.output_arg_names

    @property
    def inputs(self) -> list["IrVarNode"]:
        """The variables that it reads."""
        return self._graph.variables(self.node.input_arg_names)

    @property
    def outputs(self) -> list["IrVarNode"]:
        """The variables that it writes."""
        return self._graph.variables(self.node.output_arg_names)


class IrVarNode:
    """Variable node of a graph: one node for all operators that read or write it."""

    def __init__(self, var: Variable, graph: "IrGraph"):
        self.node, self._graph = var, graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IrVarNode) and other.node is self.node

    def __hash__(self) -> int:
        return id(self.node)

    def name(self) -> str:
        return self.node.name

    def id(self) -> int:
        """Return a number that no other node has."""
        return id(self.node)

    def is_op(self) -> bool:
        return False

    def is_var(self) -> bool:
        return True

    def var(self) -> VarDesc:
        """Return the variable's description."""
        return VarDesc(self.node)

    def persistable(self) -> bool:
        return bool(self.node.persistable)

    def type(self) -> Any:
        return self.node.type

    def dtype(self) -> Any:
        return self.node.dtype

    def shape(self) -> list[int]:
        return list(self.node.shape)

    @property
    def inputs(self) -> list[IrOpNode]:
        """The operators that write it."""
        return [o for o in self._graph.all_op_nodes() if self.node.name in o.output_arg_names()]

    @property
    def outputs(self) -> list[IrOpNode]:
        """The operators that read it."""
        return [o for o in self._graph.all_op_nodes() if self.node.name in o.input_arg_names()]


IrNode = IrOpNode | IrVarNode


class IrGraph:
    """Global block of a program, for the passes of `fluid.contrib.slim.quantization`.

    Args:
        graph: a `core.Graph`, whose program the passes rewrite.
        for_test: True if the program is one for tests.

    Nodes are read; programs are rewritten by passes alone.

    Raises TypeError for another value.
    """

    def __init__(self, graph: Graph, for_test: bool = False):
        if not isinstance(graph, Graph):
            raise TypeError(f"IrGraph: expected core.Graph(program.desc), found {type(graph).__name__}")
        self.graph, self._for_test = graph, for_test

    @property
    def program(self) -> Program:
        """The program that passes rewrite."""
        return self.graph.program

    def is_test(self) -> bool:
        """Return True if the program is one for tests."""
        return self._for_test

    def clone(self) -> "IrGraph":
        """Return a graph of a copy of the program."""
        return IrGraph(Graph(self.program.desc), self._for_test)

    def to_program(self) -> Program:
        """Return a copy of the program."""
        return self.program.clone()

    def variables(self, names: Iterable[str]) -> list[IrVarNode]:
        """Return the nodes of variables."""
        block = self.program.global_block()
        found = [block.find_var_recursive(n) for n in names]
        return [IrVarNode(v, self) for v in found if v is not None]

    def all_op_nodes(self) -> list[IrOpNode]:
        """Return all operators, in order."""
        return [IrOpNode(op, self) for op in self.program.global_block().ops]

    def all_var_nodes(self) -> list[IrVarNode]:
        """Return all variables."""
        return [IrVarNode(v, self) for v in self.program.global_block().vars.values()]

    def all_persistable_nodes(self) -> list[IrVarNode]:
        """Return the variables that are kept from step to step."""
        return [v for v in self.all_var_nodes() if v.persistable()]

    def all_nodes(self) -> list[IrNode]:
        """Return all operators and variables."""
        return [*self.all_op_nodes(), *self.all_var_nodes()]

    def draw(
        self,
        save_path: str,
        name: str,
        marked_nodes: Iterable[IrOpNode] | None = None,
        remove_ctr_var: bool = True,
    ) -> str:
        """Write the graph in Graphviz DOT to `save_path/name.dot`, and return the path.

        Args:
            marked_nodes: operators whose variables are highlighted.
            remove_ctr_var: leave out variables that only order operators; a graph of jfluid has none.
        """
        path = f"{save_path}/{name}.dot"
        marked = [n for node in marked_nodes or () for n in node.output_arg_names()]
        text = graphviz.block_to_dot(self.program.global_block(), [re.escape(n) for n in marked])
        Path(path).write_text(text)
        return path
