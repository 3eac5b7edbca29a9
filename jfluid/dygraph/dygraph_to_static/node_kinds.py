"""`fluid.dygraph.dygraph_to_static.static_analysis`: kinds of values in syntax trees."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Optional

from jfluid.dygraph.dygraph_to_static.syntax_trees import called_function, children, index_in_list, kind
from jfluid.errors import ProgramError

__all__ = ["AstNodeWrapper", "AstVarEnv", "AstVarScope", "NodeVarType", "StaticAnalysisVisitor"]


class NodeVarType:
    """Kinds of values; their numbers are Fluid's."""

    ERROR = -1
    UNKNOWN = 0
    STATEMENT = 1
    CALLABLE = 2
    NONE = 100
    BOOLEAN = 101
    INT = 102
    FLOAT = 103
    STRING = 104
    TENSOR = 105
    NUMPY_NDARRAY = 106
    LIST = 200
    SET = 201
    DICT = 202
    PADDLE_DYGRAPH_API = 300
    PADDLE_CONTROL_IF = 301
    PADDLE_CONTROL_WHILE = 302
    PADDLE_CONTROL_FOR = 303
    PADDLE_RETURN_TYPES = 304

    TENSOR_TYPES = frozenset({TENSOR, PADDLE_RETURN_TYPES})

    @staticmethod
    def binary_op_output_type(in_type1: int, in_type2: int) -> int:
        """Return the kind of `a + b`: of two numbers the wider kind, of a number and an array the array."""
        if in_type1 == in_type2:
            return in_type1
        if NodeVarType.UNKNOWN in (in_type1, in_type2):
            return max(in_type1, in_type2)
        arrays = {NodeVarType.TENSOR, NodeVarType.NUMPY_NDARRAY}
        computed = {NodeVarType.BOOLEAN, NodeVarType.INT, NodeVarType.FLOAT, *arrays}
        if not {in_type1, in_type2} <= computed or {in_type1, in_type2} == arrays:
            return NodeVarType.UNKNOWN
        return max(in_type1, in_type2)


_CONSTANTS: dict[type, int] = {
    type(None): NodeVarType.NONE,
    bool: NodeVarType.BOOLEAN,
    int: NodeVarType.INT,
    float: NodeVarType.FLOAT,
    str: NodeVarType.STRING,
}
_FIXED = {
    "BoolOp": NodeVarType.BOOLEAN,
    "Compare": NodeVarType.BOOLEAN,
    "Dict": NodeVarType.DICT,
    "Set": NodeVarType.SET,
}
_NAMED = {"None": NodeVarType.NONE, "True": NodeVarType.BOOLEAN, "False": NodeVarType.BOOLEAN}
_UNKNOWN = frozenset({NodeVarType.UNKNOWN})


class AstNodeWrapper:
    """A node with its parent, its children, and the kinds that its value may have."""

    def __init__(self, node: Any):
        self.node = node
        self.parent: AstNodeWrapper | None = None
        self.children: list[AstNodeWrapper] = []
        self.node_var_type = set(_UNKNOWN)


class _ScopeType(IntEnum):
    SCRIPT = 0
    FUNCTION = 1
    CLASS = 2


class AstVarScope:
    """The kinds of the variables of a module, function or class."""

    SCOPE_TYPE_SCRIPT = _ScopeType.SCRIPT
    SCOPE_TYPE_FUNCTION = _ScopeType.FUNCTION
    SCOPE_TYPE_CLASS = _ScopeType.CLASS

    def __init__(
        self,
        scope_name: str = "",
        scope_type: int = _ScopeType.SCRIPT,
        parent_scope: Optional["AstVarScope"] = None,
    ):
        self.scope_name, self.scope_type, self.parent_scope = scope_name, scope_type, parent_scope
        self.sub_scopes: list[AstVarScope] = []
        self.types: dict[str, set[int]] = {}
        if parent_scope is not None:
            parent_scope.sub_scopes.append(self)

    def add_var_type(self, var_name: str, node_var_type: int | Iterable[int]) -> None:
        """Add kinds to the kinds of a variable."""
        known = self.get_var_type(var_name)
        self.set_var_type(var_name, (known - _UNKNOWN) | _kinds(node_var_type))

    def set_var_type(self, var_name: str, node_var_type: int | Iterable[int]) -> None:
        """Set the kinds of a variable."""
        self.types[var_name] = _kinds(node_var_type)

    def get_var_type(self, var_name: str) -> set[int]:
        """Return the kinds of a variable of this scope, or of one around it."""
        if var_name in self.types:
            return self.types[var_name]
        return set(_UNKNOWN) if self.parent_scope is None else self.parent_scope.get_var_type(var_name)


def _kinds(given: int | Iterable[int]) -> set[int]:
    return {given} if isinstance(given, int) else set(given)


class AstVarEnv:
    """A stack of scopes."""

    def __init__(self) -> None:
        self.cur_scope = AstVarScope()

    def enter_scope(self, scope_name: str, scope_type: int) -> AstVarScope:
        """Enter a new scope inside the current one."""
        self.cur_scope = AstVarScope(scope_name, scope_type, self.cur_scope)
        return self.cur_scope

    def exit_scope(self) -> AstVarScope:
        """Return to the scope around the current one."""
        self.cur_scope = self.get_parent_scope()
        return self.cur_scope

    def get_parent_scope(self) -> AstVarScope:
        """Return the scope around the current one. Raises ProgramError where there is none."""
        if self.cur_scope.parent_scope is None:
            raise ProgramError("AstVarEnv: there is no scope around that of the module")
        return self.cur_scope.parent_scope

    def add_var_type(self, var_name: str, node_var_type: int | Iterable[int]) -> None:
        """Add kinds to the kinds of a variable of the current scope."""
        self.cur_scope.add_var_type(var_name, node_var_type)

    def set_var_type(self, var_name: str, node_var_type: int | Iterable[int]) -> None:
        """Set the kinds of a variable of the current scope."""
        self.cur_scope.set_var_type(var_name, node_var_type)

    def get_var_type(self, var_name: str) -> set[int]:
        """Return the kinds of a variable."""
        return self.cur_scope.get_var_type(var_name)

    def get_scope_var_type(self) -> dict[str, set[int]]:
        """Return the kinds of all variables of the current scope."""
        return dict(self.cur_scope.types)


class StaticAnalysisVisitor:
    """The kinds of the values of all nodes of a syntax tree.

    Args:
        ast_root: the tree; None to call `run` with it later.
    """

    def __init__(self, ast_root: Any = None):
        if ast_root is not None:
            self.run(ast_root)

    def run(self, ast_root: Any) -> None:
        """Analyse a tree."""
        self._map: dict[Any, AstNodeWrapper] = {}
        self._env = AstVarEnv()
        self._root = self._visit(ast_root, None)

    def get_node_wrapper_root(self) -> AstNodeWrapper:
        """Return the root's wrapper."""
        return self._root

    def get_node_to_wrapper_map(self) -> dict[Any, AstNodeWrapper]:
        """Return all wrappers by their nodes."""
        return self._map

    def get_var_env(self) -> AstVarEnv:
        """Return the scopes."""
        return self._env

    def _visit(self, node: Any, parent: AstNodeWrapper | None) -> AstNodeWrapper:
        wrapper = self._map.setdefault(node, AstNodeWrapper(node))  # contexts are shared by nodes
        if parent is not None:
            parent.children.append(wrapper)
            wrapper.parent = parent
        for child in children(node):
            if kind(child) in ("FunctionDef", "AsyncFunctionDef"):
                self._env.enter_scope(child.name, AstVarScope.SCOPE_TYPE_FUNCTION)
                self._visit(child, wrapper)
                self._env.exit_scope()
            else:
                self._visit(child, wrapper)
        wrapper.node_var_type = self._types(wrapper)
        return wrapper

    def _types(self, wrapper: AstNodeWrapper) -> set[int]:
        node, what = wrapper.node, kind(wrapper.node)
        if what in _FIXED:
            return {_FIXED[what]}
        match what:
            case "Constant":
                return {_CONSTANTS.get(type(node.value), NodeVarType.UNKNOWN)}
            case "UnaryOp":
                return self._map[node.operand].node_var_type
            case "BinOp":
                left, right = (self._map[n].node_var_type for n in (node.left, node.right))
                return {NodeVarType.binary_op_output_type(a, b) for a in left for b in right}
            case "Assign":
                return self._assign(node)
            case "Name" if node.id in _NAMED:
                return {_NAMED[node.id]}
            case "Name" | "arg" if wrapper.parent and kind(wrapper.parent.node) == "arguments":
                return self._parameter(node, wrapper.parent.node)
            case "Name":
                return self._env.get_var_type(node.id)
            case "Return":
                return self._return(node)
            case "Call":
                return self._call(node)
        return {NodeVarType.STATEMENT}

    def _assign(self, node: Any) -> set[int]:
        types = self._map[node.value].node_var_type
        for target in node.targets:
            if kind(target) == "Name":
                self._map[target].node_var_type = types
                self._env.set_var_type(target.id, types)
        return types

    def _parameter(self, node: Any, arguments: Any) -> set[int]:
        """Return the kind of a parameter's default."""
        at = index_in_list(arguments.args, node) - len(arguments.args)
        if at < -len(arguments.args) or -at > len(arguments.defaults):
            return set(_UNKNOWN)
        default = arguments.defaults[at]
        if kind(default) != "Constant":
            return set(_UNKNOWN)
        types = {_CONSTANTS.get(type(default.value), NodeVarType.UNKNOWN)}
        self._env.set_var_type(getattr(node, "id", None) or node.arg, types)
        return types

    def _return(self, node: Any) -> set[int]:
        if node.value is None:
            return {NodeVarType.NONE}
        if self._env.cur_scope.scope_type != AstVarScope.SCOPE_TYPE_FUNCTION:
            raise ProgramError("StaticAnalysisVisitor: a return outside of a function")
        types = self._map[node.value].node_var_type
        self._env.get_parent_scope().add_var_type(self._env.cur_scope.scope_name, types)
        return types

    def _call(self, node: Any) -> set[int]:
        function = called_function(node)
        home = getattr(function, "__module__", None) or ""
        if home == "jfluid.dygraph.base" and function.__name__ == "to_variable":
            return {NodeVarType.TENSOR}
        if home.startswith("jfluid."):
            return {NodeVarType.PADDLE_RETURN_TYPES}
        if home.startswith("numpy"):
            return {NodeVarType.NUMPY_NDARRAY}
        if kind(node.func) == "Name":
            return self._env.get_var_type(node.func.id)
        return {NodeVarType.STATEMENT}
