"""The imports of jfluid's modules, read from their source: those in functions, and for types alone,
count too.

    python -m tests.import_graph        # prints the figures
"""

import ast
import functools
import gc
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "jfluid"
Graph = Mapping[str, set[str]]

# Folders and modules of the package, from the bottom up: each imports from those of earlier lines
# only.
LAYERS = (
    {"printable"},
    {"errors", "startup"},
    {"environment"},
    {"average", "flags", "host", "installation", "ir", "launcher_pipe", "security", "trainer_desc"},
    {"caches", "known_sizes", "places", "record", "surface"},
    {"fetch_handler", "profiler", "progress"},
    {"processes"},
    {"initializer", "job", "lod_tensor", "regularizer", "transpiler"},
    {"dashboard"},
    {"launch", "ps_server", "scope"},
    {"core", "files", "param_attr"},
    {"debugger", "doctor", "ops"},
    {"machine_code"},
    {"compile"},
    {"feeding", "interop"},
    {"parallel"},
    {"engine"},
    {"compiler", "dataset", "distributed", "layers"},
    {"clip", "executor", "input", "io", "nets"},
    {"metrics"},
    {"dygraph"},
    {"evaluator", "exports", "optimizer", "parallel_executor"},
    {"contrib"},
    {"fleet", "install_check", "serving"},
    {"compat"},
    {"__init__"},
    {"check_device"},
    {"command"},
    {"__main__"},
)


@functools.cache
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    gc.disable()  # the collector would walk through all trees again and again
    try:
        return ast.parse(path.read_text())
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree."""
    return tuple(ast.walk(syntax(path)))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """What a file imports: (module, name) for each name that it takes from a module, (module, "")
    for a whole one.
    """
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path}, line {node.lineno}: write imports with the package's name"
            yield from ((node.module, alias.name) for alias in node.names)


def read(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Of each module of a package the modules of it that it imports: `from a import b` is an import
    of a.b where that is a module, else of a."""
    paths = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
    }
    graph = {}
    for module, path in paths.items():
        found = {f"{source}.{name}" if f"{source}.{name}" in paths else source for source, name in imports(path)}
        graph[module] = found & set(paths) - {module}
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """The largest sets of modules that all lead to each other by imports (Tarjan's strongly
    connected components).
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in number:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            circle = {module}
            while (last := path.pop()) != module:
                circle.add(last)
            if len(circle) > 1:
                found.append(circle)

    for module in graph:
        if module not in number:
            visit(module)
    return found


def place(module: str) -> str:
    """What `LAYERS` calls the folder of a module, or the module itself where it is in none."""
    return [*module.split("."), "__init__"][1]


def upward(graph: Graph) -> list[str]:
    """Imports between folders that do not lead to a lower layer. Raises KeyError for a folder
    without a layer.
    """
    layer = {name: i for i, names in enumerate(LAYERS) for name in names}
    return [
        f"{module}: {other}"
        for module, others in graph.items()
        for other in sorted(others)
        if place(module) != place(other) and layer[place(module)] <= layer[place(other)]
    ]


if __name__ == "__main__":
    modules = read()
    sizes = sorted(map(len, circles(modules)), reverse=True)
    print(
        f"{len(modules)} modules, {sum(map(len, modules.values()))} imports of one by another, circles of {sizes} "
        f"modules, {len(upward(modules))} imports upward"
    )
