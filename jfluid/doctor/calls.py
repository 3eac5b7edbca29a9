"""Calls of Fluid in a script: arguments, values, rules; and settings of the environment."""

import ast
from typing import Any

from jfluid import errors
from jfluid.doctor.examination import Examination
from jfluid.doctor.findings import Severity
from jfluid.doctor.fluid_api import FluidName, shown
from jfluid.doctor.names import Literal, Named, NamedModule, UnknownName
from jfluid.doctor.rules import COMPUTED, settings

# Parameters that mean the same in all layers.
_ACTIVATIONS, _DTYPES = ("act",), ("dtype",)
_LAYERS = ("fluid.layers", "fluid.data", "fluid.embedding", "fluid.nets")


def check(script: Examination, node: ast.Call) -> None:
    """Check one call."""
    called = script.value(node.func)
    if isinstance(called, Named) and called.entry.kind != "missing":
        _check_fluid(script, node, called)
    elif isinstance(called, UnknownName) and not script.api.is_module(called.owner):
        near = errors.close_to(called.name, called.known)
        script.add(
            Severity.CHANGE,
            node.func,
            "unknown-name",
            f"{called.owner}.{called.name}",
            f"{called.owner} has no {called.name} here{near}",
            "use a method that there is",
        )
    elif isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1:
        _check_getattr(script, node)
    else:
        _check_environment(script, node)


def _check_getattr(script: Examination, node: ast.Call) -> None:
    holder, name = script.value(node.args[0]), script.value(node.args[1])
    if not isinstance(holder, NamedModule) or not holder.of_fluid:
        return
    if not isinstance(name, Literal):
        script.add(
            Severity.NOTE,
            node,
            "computed-name",
            f"getattr({shown(holder.path)}, ...)",
            f"the name that is taken from {shown(holder.path)} is computed, so that nothing can be said of it",
            "try it with --run",
        )
        return
    script.visit(ast.copy_location(ast.Attribute(node.args[0], str(name.value), ast.Load()), node))


def _check_fluid(script: Examination, node: ast.Call, called: Named) -> None:
    """Check a call against the signature, the known values and the rules."""
    name, entry = shown(called.path), called.entry
    refusal = _refusal(node, entry)
    if refusal is not None:
        says, remedy = refusal
        script.add(Severity.BLOCKER, node, "refused", name, f"{name} is refused: {says}", remedy)
        return
    if entry.state == "no effect":
        happens = f"{name} has no effect: {entry.says}"
        script.add(Severity.NOTE, node, "no-effect", name, happens)
    if entry.parameters is None:
        return
    _check_signature(script, node, name, entry)
    arguments = _arguments(script, node, entry)
    _check_values(script, node, name, arguments)
    for rule in script.rules_of(called, arguments):
        found = {n: arguments[n] for n in (*rule.unlike, *rule.equal, *rule.above)}
        shown_values = ", ".join(f"{n}={value!r}" for n, value in found.items())
        script.add_rule(rule, node, name, f"{name}({shown_values}): ")
    if entry.name == "set_flags":
        _check_flags(script, node)


def _refusal(node: ast.Call, entry: FluidName) -> tuple[str, str] | None:
    """Return why a call of a known name is refused, and the remedy; None for a call that works."""
    if entry.state == "refuses":
        return entry.says, "rewrite it"
    if entry.name == "load_op_library" and not any(
        isinstance(given, ast.Constant) and str(given.value).endswith(".py")
        for given in (*node.args, *(keyword.value for keyword in node.keywords))
    ):
        return (
            "operators compiled for Fluid call its C++ framework",
            "load a Python file of JAX functions",
        )
    return None


def _check_signature(script: Examination, node: ast.Call, name: str, entry: FluidName) -> None:
    parameters, names = entry.parameters or (), entry.parameter_names
    for keyword in node.keywords:
        if keyword.arg is not None and not entry.takes(keyword.arg):
            script.add(
                Severity.CHANGE,
                keyword,
                "unknown-argument",
                f"{name}({keyword.arg}=)",
                f"{name} has no argument {keyword.arg}{errors.close_to(keyword.arg, names)}",
                f"its arguments are {', '.join(names)}" if names else "it takes none",
            )
    if any(isinstance(a, ast.Starred) for a in node.args) or None in [k.arg for k in node.keywords]:
        return
    stars = [i for i, p in enumerate(parameters) if p.startswith("*")]
    by_position = parameters[: stars[0] if stars else None]
    open_ended = any(p.startswith("*") and p.strip("*") and p[:2] != "**" for p in parameters)
    if len(node.args) > len(by_position) and not open_ended:
        script.add(
            Severity.CHANGE,
            node,
            "too-many-arguments",
            name,
            f"{name} is given {len(node.args)} arguments by position, and takes {len(by_position)}",
            f"its arguments are {', '.join(names)}",
        )
    given = {p.rstrip("=") for p in by_position[: len(node.args)]}
    given |= {k.arg for k in node.keywords if k.arg}
    lacking = [p for p in parameters if p not in given and p[-1] != "=" and p[0] != "*"]
    if lacking:
        script.add(
            Severity.CHANGE,
            node,
            "missing-argument",
            name,
            f"{name} is called without {', '.join(lacking)}",
            "give it",
        )


def _arguments(script: Examination, node: ast.Call, entry: FluidName) -> dict[str, Any]:
    """Return arguments by name: constants as values, COMPUTED for all other expressions."""

    def constant(value: ast.expr) -> Any:
        found = script.value(value)
        return found.value if isinstance(found, Literal) else COMPUTED

    found = {
        name.rstrip("="): constant(value)
        for name, value in zip(entry.parameters or (), node.args)
        if not name.startswith("*")
    }
    return found | {k.arg: constant(k.value) for k in node.keywords if k.arg is not None}


def _check_values(script: Examination, node: ast.Call, name: str, arguments: dict[str, Any]) -> None:
    for names, known in ((_ACTIVATIONS, script.api.activations), (_DTYPES, script.api.dtypes)):
        for argument in names:
            value = arguments.get(argument)
            if isinstance(value, str) and value not in known and name.startswith(_LAYERS):
                script.add(
                    Severity.CHANGE,
                    next((k.value for k in node.keywords if k.arg == argument), node),
                    "refused-value",
                    f"{name}({argument}=)",
                    f"{name}: {argument}={value!r} is refused{errors.close_to(value, known)}",
                    "give one that there is",
                )


def check_field(script: Examination, target: ast.Attribute, owner: FluidName) -> None:
    """Check the name of a field that is set."""
    if owner.fields is not None and target.attr not in owner.fields | owner.attributes:
        near = errors.close_to(target.attr, owner.fields)
        script.add(
            Severity.CHANGE,
            target,
            "unknown-argument",
            f"{owner.name}.{target.attr}",
            f"{owner.name} has no field {target.attr}{near}",
            "delete the line, or set a field that there is",
        )


# ---- settings of the environment


def check_item(script: Examination, target: ast.expr, value: object) -> None:
    """Check `os.environ[name] = value`."""
    if isinstance(target, ast.Subscript) and _is_environ(script, target.value):
        name = script.value(target.slice)
        if isinstance(name, Literal):
            check_setting(script, target, str(name.value))


def _is_environ(script: Examination, node: ast.expr) -> bool:
    value = script.value(node)
    return isinstance(value, NamedModule) and value.path == "os.environ"


def _check_environment(script: Examination, node: ast.Call) -> None:
    """Check `os.environ.setdefault(...)`, `.update(...)` and `os.putenv(...)`."""
    called = script.value(node.func)
    if not isinstance(called, NamedModule):
        return
    if called.path in ("os.environ.setdefault", "os.putenv") and node.args:
        name = script.value(node.args[0])
        if isinstance(name, Literal):
            check_setting(script, node, str(name.value))
    elif called.path == "os.environ.update":
        for keyword in node.keywords:
            if keyword.arg:
                check_setting(script, keyword, keyword.arg)
        for argument in node.args:
            for key in argument.keys if isinstance(argument, ast.Dict) else ():
                if isinstance(key, ast.Constant):
                    check_setting(script, key, str(key.value))


def check_setting(script: Examination, node: ast.AST, name: str) -> None:
    """Say of an environment variable or flag that it has no effect here."""
    if name in script.api.flags["effective"]:
        return
    for setting in settings():
        if setting.matches(name):
            happens = f"{name}: {setting.happens}"
            script.add(Severity.NOTE, node, "no-effect", name, happens, setting.do)
            return
    if name.startswith("FLAGS_") and name not in script.api.flags["without effect"]:
        happens = f"{name} is no flag that anything reads here"
        script.add(Severity.NOTE, node, "no-effect", name, happens)


def _check_flags(script: Examination, node: ast.Call) -> None:
    """Check `fluid.set_flags({...})`, which refuses unknown flags."""
    for argument in node.args:
        for key in argument.keys if isinstance(argument, ast.Dict) else ():
            name = key.value if isinstance(key, ast.Constant) else None
            known = [*script.api.flags["effective"], *script.api.flags["without effect"]]
            if isinstance(name, str) and key is not None and name not in known:
                script.add(
                    Severity.CHANGE,
                    key,
                    "refused-value",
                    name,
                    f"set_flags refuses {name}: there is no such flag{errors.close_to(name, known)}",
                    "delete it",
                )
            elif isinstance(name, str) and key is not None:
                check_setting(script, key, name)
