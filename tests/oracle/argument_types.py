"""Write jfluid/layers/argument_types.txt: which types and dtypes the real Fluid's layers accept.

Fluid's layers call three functions that check arguments, or raise TypeError or ValueError after `isinstance`.
This reads the calls and conditions, and writes the facts: the layer, its argument, the types, the dtypes.
Run with Python 3.9 or newer, from the project's root:
python -m tests.oracle.argument_types FOLDER_OF_PADDLE_FLUID
"""

import ast
import re
import sys
from pathlib import Path

CHECKS = {"check_variable_and_dtype": "both", "check_type": "type", "check_dtype": "dtype"}
FILES = (
    *[
        f"layers/{n}.py"
        for n in (
            "control_flow detection io learning_rate_scheduler loss metric_op nn ops rnn sequence_lod tensor"
        ).split()
    ],
    "nets.py",
)
# Conditions after which a layer raises TypeError or ValueError.
ISINSTANCE = re.compile(
    r"(?P<none>(?P<first>\w+) is not None and )?"
    r"\(?not isinstance\((?P<name>\w+), [^()]*(\([^()]*\))?\)\)?"
    r"( and \(not isinstance\((?P=name), [^()]*(\([^()]*\))?\)\))*"
)
ISINSTANCE_OF = re.compile(r"isinstance\(\w+, (\w+|\([^()]*\))\)")
KINDS = {
    "Variable": "Variable",
    "list": "list",
    "tuple": "tuple",
    "int": "int",
    "integer_types": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "dict": "dict",
    "ndarray": "ndarray",
    "NoneType": "None",
}
ELEMENTWISE = "add div sub mul max min pow mod floordiv".split()
# Layers that are made by functions of functions: (where Fluid checks, the layers, their arguments).
MADE = {
    "_elementwise_op": (["elementwise_" + n for n in ELEMENTWISE], ("x", "y")),
    "_logical_op": (["logical_" + n for n in ("and", "or", "xor", "not")], ("x", "y")),
    "_tril_triu_op": (["tril", "triu"], ("input",)),
    "diag_embed.__check_input": (["diag_embed"], ("input",)),
    "trace.__check_input": (["trace"], ("input",)),
    "matmul.__check_input": (["matmul"], ("x", "y")),
}
# Layers that are no part of fluid.layers, and the argument that a maker's other layers have.
PRIVATE = set(
    "array_to_lod_tensor cross_entropy2 lod_rank_table lod_tensor_to_array merge_lod_tensor"
    " select_input select_output split_lod_tensor".split()
)
ABSENT = {("logical_not", "y")}
# Checks that another argument decides about: arrays alone, no `dtype`.
DEPENDENT = {("stack", "x"), ("log_softmax", "input")}


def kinds(node):
    """The names of types in the expression of a check; None where one is of no use here."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    found = []
    for part in parts:
        if isinstance(part, ast.Call):  # type(None)
            found.append("NoneType")
        elif isinstance(part, ast.Attribute):
            found.append(part.attr)
        elif isinstance(part, ast.Name):
            found.append(part.id)
        else:
            return None
    return [KINDS[n] for n in found] if all(n in KINDS for n in found) else None


def dtypes(node):
    """The names of dtypes in the expression of a check; None where they follow from others."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, (ast.List, ast.Tuple)) and all(isinstance(e, ast.Constant) for e in node.elts):
        return list(dict.fromkeys(e.value for e in node.elts))
    return None


def names(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


class Reader(ast.NodeVisitor):
    """The checks of a file, as (layer, argument, "each" or "", types, dtypes, whether an
    `isinstance` stands before)."""

    def __init__(self):
        self.functions, self.loops, self.tests, self.found = [], [], [], []
        self.wrapped = set()  # (layer, argument) whose number becomes a list of it before the check

    def visit_FunctionDef(self, node):
        kept, self.loops = self.loops, []
        self.functions.append(node)
        self.generic_visit(node)
        self.functions.pop()
        self.loops = kept

    def visit_ClassDef(self, node):
        pass

    def visit_For(self, node):
        self.loops.append(node)
        self.generic_visit(node)
        self.loops.pop()

    def visit_If(self, node):
        self._isinstance(node)
        self.tests.append(ast.unparse(node.test))
        if self.tests[-1].startswith("type(") and self.tests[-1].endswith(") == int"):
            self.wrapped.add((self.functions[-1].name, self.tests[-1][5:-8]))
        self.generic_visit(node)
        self.tests.pop()

    def _isinstance(self, node):
        """Note the types of an argument whose other types a condition at the top of a layer refuses."""
        match = ISINSTANCE.fullmatch(ast.unparse(node.test))
        raised = node.body[0].exc if isinstance(node.body[0], ast.Raise) else None
        of_type = isinstance(raised, ast.Call) and getattr(raised.func, "id", "") in ("TypeError", "ValueError")
        if not of_type or not match or self.tests or self.loops or len(self.functions) != 1:
            return
        (function,) = self.functions
        name = match["name"]
        parts = [ast.parse(t, mode="eval").body for t in ISINSTANCE_OF.findall(ast.unparse(node.test))]
        found = [kinds(part) for part in parts]
        if name in [a.arg for a in function.args.args] and None not in found:
            types = [t for part in found for t in part] + (["None"] if match["none"] else [])
            for layer in MADE.get(function.name, ([function.name],))[0]:
                self.found.append((layer, name, "", types, None))

    def visit_Call(self, node):
        self.generic_visit(node)
        kind = CHECKS.get(getattr(node.func, "id", None))
        if kind is None or not self.functions:
            return
        subject, label, wanted = node.args[:3]
        layer = ".".join(f.name for f in self.functions)
        of_value = isinstance(subject, ast.Attribute) and subject.attr == "dtype"
        name = ast.unparse(subject.value if of_value else subject)
        args = [a.arg for a in self.functions[-1].args.args]
        each = ""
        for loop in reversed(self.loops):
            if name in names(loop.target):
                over = [n for n in args if n in names(loop.iter)]
                name, each = (over or [name])[0], "each"
                break
        made = MADE.get(layer)
        if made and layer.startswith("_logical") and name == "out":
            made = made[0], ("out",)
        elif made and layer.startswith("_logical"):
            made = made[0], ("x", "y")
        if made is None and name not in args:
            text = label.value if isinstance(label, ast.Constant) else None
            if text not in args or kind != "dtype":
                print("left out:", layer, ast.unparse(node), file=sys.stderr)
                return
            name, each, of_value = text, "each", True
        types = kinds(wanted) if kind == "type" else ["Variable"] if kind == "both" else None
        allowed = dtypes(wanted) if kind != "type" else None
        if types is None and allowed is None:
            print("left out:", layer, ast.unparse(node), file=sys.stderr)
            return
        guarded = any(f"isinstance({name}, " in t for t in self.tests)
        if kind == "dtype" and not of_value:
            types = ["dtype"]
        elif guarded and kind == "both":
            types = None
        layers, arguments = made or ([layer], (name,))
        for one in layers:
            for argument in arguments:
                self.found.append((one, argument, each, types, allowed))


def activations(folder):
    """The layers that `generate_activation_fn` makes: (name, dtypes)."""
    floats = ["float16", "float32", "float64"]
    for part in ast.parse((folder / "layers/ops.py").read_text()).body:
        target = part.targets[0] if isinstance(part, ast.Assign) else None
        if getattr(target, "id", "").startswith("__") and isinstance(part.value, ast.List):
            for e in part.value.elts:
                more = ["int32", "int64"] if e.value in ("abs", "exp", "square") else []
                yield e.value, more + floats


def main(folder):
    rules = {}
    for file in FILES:
        reader = Reader()
        reader.visit(ast.parse((folder / file).read_text()))
        for layer, argument, each, types, allowed in reader.found:
            if "." in layer:
                print("left out:", layer, argument, allowed, file=sys.stderr)
                continue
            if layer in PRIVATE or (layer, argument) in DEPENDENT | ABSENT:
                continue
            rule = rules.setdefault((layer, argument, each), [None, None])
            number = ["int"] if (layer, argument) in reader.wrapped else []
            rule[0] = list(dict.fromkeys([*(rule[0] or []), *(types or []), *number])) or None
            rule[1] = allowed if rule[1] is None else rule[1]
    for name, allowed in activations(folder):
        rules[name, "x", ""] = [["Variable"], allowed]
    lines = [
        f"{layer} | {argument}{' each' if each else ''} | {' '.join(types or [])} | {' '.join(allowed or [])}"
        for (layer, argument, each), (types, allowed) in sorted(rules.items())
    ]
    Path("jfluid/layers/argument_types.txt").write_text("\n".join(line.rstrip() for line in lines) + "\n")
    print(len(lines), "rules of", len({layer for layer, _, _ in rules}), "layers")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
