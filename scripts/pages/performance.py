"""Tables of docs/performance.md, from the figures in benchmarks/results.json: what stands between
`<!-- figures: PART -->`, or `<!-- summary -->`, and `<!-- end -->`. A part that was not measured keeps
what is there.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.pages.tables import table

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "performance.md"
RESULTS = _ROOT / "benchmarks" / "results.json"
_REGION = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
_SUMMARY = re.compile(r"(<!-- summary -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
# What a user chooses between, and how the names of an engine's ways begin.
CHOICES = {
    "Fluid 1.8.5": "Fluid",
    "hand-written JAX": "JAX",
    "PyTorch 2": "PyTorch",
    "Paddle 3": "Paddle",
}

Found = dict[str, Any]


def page() -> str:
    """The page's text."""
    parts = json.loads(RESULTS.read_text())["parts"] if RESULTS.exists() else {}
    return filled(_PAGE.read_text(), parts)


def filled(text: str, parts: dict[str, Found]) -> str:
    """A page whose regions have the figures of the parts in them.

    Raises ValueError: a region of no part, or a part that was measured and has no region.
    """
    named = [match[2] for match in _REGION.finditer(text)]
    if unknown := [name for name in named if name not in _TABLES]:
        raise ValueError(f"there are no figures of {', '.join(unknown)}: {', '.join(_TABLES)}")
    if unshown := parts.keys() - set(named):
        raise ValueError(f"figures without a region in the page: {', '.join(sorted(unshown))}")

    def region(match: re.Match[str]) -> str:
        part = parts.get(match[2])
        if part is None:
            return match[0]
        return f"{match[1]}\n{_header(part)}\n{_TABLES[match[2]](part['found'])}\n{match[4]}"

    def summary(match: re.Match[str]) -> str:
        shown = [name for name in ("limit", "detection", "dygraph") if name in parts]
        return f"{match[1]}\n{_summary(parts, shown)}\n{match[3]}" if shown else match[0]

    return _SUMMARY.sub(summary, _REGION.sub(region, text))


def _header(part: Found) -> str:
    machine = part["machine"]
    about = (
        f"{machine['cores']} cores ({machine['processor']}), load {machine['load']} before, "
        f"Python {machine['python']}, JAX {machine['jax']}"
    )
    rows = [["command", f"`{part['command']}`"], ["machine", about]]
    return table(["", ""], [*rows, ["noted in", f"{part['commit']}, {part['date']}"]])


def _median(values: list[float]) -> float:
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def ratios(ours: Found, theirs: Found) -> list[float]:
    """Return how often ours fits into theirs in each round, the least first."""
    return sorted(b / a for a, b in zip(ours["rounds"], theirs["rounds"]))


def fastest(timed: Found, begin: str) -> Found | None:
    """Return the fastest of an engine's ways, whose names begin with `begin`; None where it has none."""
    ways = [way for name, way in timed.items() if name.startswith(begin)]
    return min(ways, key=lambda way: float(way["ms"]), default=None)


def _times(ours: Found, theirs: Found) -> str:
    """Return the median of the ratios with their range."""
    found = ratios(ours, theirs)
    return f"{_median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _summary(parts: dict[str, Found], shown: list[str]) -> str:
    """How often a step of jfluid's fits into the fastest of each engine's ways."""
    rows = [row for name in shown for row in _SUMMARIES[name](parts[name]["found"])]
    titles = [f"{name} / jfluid" for name in CHOICES]
    return table(["program", "jfluid, ms a step", *titles], rows)


def _of_limit(found: Found) -> list[list[str]]:
    rows = []
    for model, timed in found["engines"].items():
        ours, cells = timed["jfluid"], []
        for begin in CHOICES.values():
            best = fastest(timed, begin)
            cells.append(_times(ours, best).split()[0] if best else "")
        rows.append([model, _ms(ours["ms"]), *cells])
    return rows


def _of_detection(found: Found) -> list[list[str]]:
    nothing = [""] * (len(CHOICES) - 1)
    return [
        [
            model,
            _ms(min(ms for way, ms in f["ms"].items() if way.startswith("jfluid"))),
            f"{f['ratio']:.2f}",
            *nothing,
        ]
        for model, f in found.items()
    ]


def _of_dygraph(found: Found) -> list[list[str]]:
    rows = []
    for model, f in found.items():
        ours, theirs = f["jfluid, eager"], f.get("paddle.fluid, eager")
        times = _times(ours, theirs).split()[0] if theirs else ""
        nothing = [""] * (len(CHOICES) - 1)
        rows.append([f"{model}, imperative", _ms(ours["median"]), times, *nothing])
    return rows


_SUMMARIES: dict[str, Callable[[Found], list[list[str]]]] = {
    "limit": _of_limit,
    "detection": _of_detection,
    "dygraph": _of_dygraph,
}


def _limit(found: Found) -> str:
    return "\n".join([_machine(found["machine"]), _programs(found), _engines(found), _mb(found)])


def _machine(limit: Found) -> str:
    names = {"numpy": "NumPy", "xla": "XLA", "torch": "PyTorch"}
    products = ", ".join(f"{names[n]} {v:.0f}" for n, v in limit["products"].items())
    rows = [
        ["product of square matrices, single precision", f"{products} GFLOP/s"],
        ["copies of memory, read and written", f"{limit['GB/s']:.1f} GB/s"],
    ]
    theirs = limit.get("torch's convolutions", {})
    for shape, rate in limit["convolutions"].items():
        batch, channels, size, filters, width = shape.strip("()").split(", ")
        name = f"convolution: {batch} images of {channels} x {size} x {size}, {filters} filters of {width} x {width}"
        other = f", PyTorch (oneDNN) {theirs[shape]:.0f}" if shape in theirs else ""
        rows.append([name, f"XLA {rate:.0f}{other} GFLOP/s"])
    return table(["the machine's limit", ""], rows)


def _programs(found: Found) -> str:
    columns = ("compute_ms", "copy_ms", "host_ms", "wait_ms")
    rows = [
        [
            model,
            f"{_ms(p['ms'])} ({_ms(p['low'])} to {_ms(p['high'])})",
            *(f"{p[c]:.2f}" for c in columns),
            f"{p['gflop']:.2f}",
            f"{100 * p['of_peak']:.0f}%",
            f"{p['products_ms']:.2f}",
            f"{100 * p['products_of_peak']:.0f}%",
            f"{p['gbytes']:.2f}",
            f"{100 * p['of_bandwidth']:.0f}%",
        ]
        for model, p in found["programs"].items()
    ]
    titles = ["program", "ms a step", "compute", "copy", "host", "wait", "GFLOP", "of the peak"]
    titles += ["products", "of the peak in them", "GB", "of the bandwidth"]
    return table(titles, rows)


def _engines(found: Found) -> str:
    names = _others(found)
    rows = []
    for model, timed in found["engines"].items():
        ours = timed["jfluid"]
        cells = [f"{_ms(timed[n]['ms'])}: {_times(ours, timed[n])}" if n in timed else "" for n in names]
        best = min((n for n in names if n in timed), key=lambda n: timed[n]["ms"])
        ahead = _times(ours, timed[best]).split()[0]
        rows.append([model, _ms(ours["ms"]), *cells, f"{best}: {ahead}"])
    return table(["ms a step", "jfluid", *names, "the fastest other"], rows)


def _mb(found: Found) -> str:
    names = _others(found)
    rows = [
        [model, *(f"{timed[n]['model_mb']:.0f}" if n in timed else "" for n in ["jfluid", *names])]
        for model, timed in found["engines"].items()
    ]
    return table(["MB at most, beyond the import of the engine", "jfluid", *names], rows)


def _others(found: Found) -> list[str]:
    """The other engines, in the order of the first model that has them."""
    names = {name: None for timed in found["engines"].values() for name in timed}
    return [name for name in names if name != "jfluid"]


def _detection(found: Found) -> str:
    def ways(ms: dict[str, float], engine: str) -> str:
        return ", ".join(
            _ms(value) + name.removeprefix(engine).replace(",", " in")
            for name, value in ms.items()
            if name.split(",")[0] == engine
        )

    rows = [
        [
            model,
            ways(f["ms"], "paddle.fluid"),
            ways(f["ms"], "jfluid"),
            f"{f['ratio']:.2f} ({f['low']:.2f} to {f['high']:.2f})",
        ]
        for model, f in found.items()
    ]
    return table(["ms a step", "Fluid 1.8.5", "jfluid", "Fluid / jfluid, the faster ways"], rows)


def _dygraph(found: Found) -> str:
    kinds = {"eager": "eager", "static": "a program"}
    engines = {"jfluid": "jfluid", "paddle.fluid": "Fluid 1.8.5"}
    ways = [(e, k) for e in engines for k in kinds if any(f"{e}, {k}" in f for f in found.values())]
    rows = []
    for model, f in found.items():
        ours = f["jfluid, eager"]
        cells = []
        for engine, kind in ways:
            one = f[f"{engine}, {kind}"]
            cell = f"{_ms(one['median'])} ({_ms(one['processor'])})"
            cells.append(cell if one is ours else f"{cell}: {_times(ours, one)}")
        rows.append([model, *cells])
    return table(["ms a step", *(f"{engines[e]}, {kinds[k]}" for e, k in ways)], rows)


def _operators(found: Found) -> str:
    rows = [
        [
            "Fluid 1.8.5" if engine == "paddle.fluid" else engine,
            f"{f['median']:.1f} ({f['low']:.1f} to {f['high']:.1f})",
            f"{f['processor']:.1f}",
        ]
        for engine, f in found.items()
    ]
    return table(["an eager operator", "microseconds", "of processor time"], rows)


def _replicas(found: Found) -> str:
    modes = {
        "jfluid one": "one device",
        "jfluid replicas": "two replicas, one program",
        "jfluid apart": "apart",
        "jfluid reduce": "Reduce",
    }
    rows = []
    for model, timed in found.items():
        best = min(("jfluid one", "jfluid apart"), key=lambda mode: timed[mode]["ms"])
        ratio = _times(timed[best], timed["jfluid replicas"])
        rows.append([model, *(_ms(timed[mode]["ms"]) for mode in modes), ratio])
    return table(["ms a step", *modes.values(), "one program against the fastest"], rows)


def _host(found: Found) -> str:
    rows = [
        [
            kind,
            f"{f['run_us']:.0f}",
            f"{f['call_us']:.0f}",
            f"{f['beyond_us']:.0f} ({f['low']:.0f} to {f['high']:.0f})",
            f"{f['beyond_clock_us']:.0f}",
        ]
        for kind, f in found.items()
    ]
    titles = ["feed", "processor us of `Executor.run`", "of XLA's call", "beyond it"]
    return table([*titles, "beyond it, on the clock"], rows)


def _heights(found: Found) -> str:
    heights = list(next(iter(found.values()))["ms"])
    rows = [
        [
            optimizer,
            *(_ms(f["ms"][height]) for height in heights),
            f"{f['ratio']:.3f} ({f['low']:.2f} to {f['high']:.2f})",
        ]
        for optimizer, f in found.items()
    ]
    return table(["ms a step", *(f"{int(h):,} rows" for h in heights), "ratio (goal 1.1)"], rows)


def _startup(found: Found) -> str:
    rows = [
        ["import jfluid", f"{found['import']:.2f}"],
        ["build the ResNet-50 training program", f"{found['resnet50_built']:.2f}"],
        ["resnet_cifar, first start to the end of step 1", f"{found['first']:.2f}"],
        ["resnet_cifar, second start to the end of step 1", f"{found['second']:.2f}"],
    ]
    for long in found["long"]:
        what = f"{long['operators']} operators: processor seconds to build, and of the first step"
        rows.append([what, f"{long['build']:.2f}, {long['first']:.2f}"])
    what = "processor seconds an operator, the longest program against the shortest"
    return table(["what", "seconds"], [*rows, [what, f"{found['linear']:.2f} times"]])


def _memory(found: Found) -> str:
    rows = [
        [optimizer, f"{f['one device']:.0f}", f"{f['Reduce']:.0f}"] + [f"{f['Reduce'] / f['one device']:.2f}"]
        for optimizer, f in found["optimizers"].items()
    ]
    title = f"MiB, {found['parameters_mb']:.0f} of them parameters"
    return table([title, "one device", f"{found['replicas']} replicas, Reduce", "ratio"], rows)


def _feeding(found: Found) -> str:
    first = next(iter(found["models"].values()))["jfluid"]["loaders"]
    rows = [
        [
            model,
            engine if engine == "jfluid" else "Fluid 1.8.5",
            _ms(f["fed_ms"]),
            _ms(f["loaders"][0]["ms"]),
            *(f"{100 * one['waits']:.1f}%" for one in f["loaders"]),
        ]
        for model, engines in found["models"].items()
        for engine, f in engines.items()
    ]
    waits = [f"waits, reader at {100 * one['busy']:.0f}%" for one in first]
    titles = ["model", "engine", "ms a step, fed", "from a loader, reader at 0%", *waits]
    rate = found["crossing"]
    return (
        table(titles, rows)
        + f"\nFrom a reader's process come {rate['median']:.0f} MB/s ({rate['low']:.0f} to {rate['high']:.0f}).\n"
    )


def _dataset(found: Found) -> str:
    names = {"jfluid": "jfluid", "paddle.fluid": "Fluid 1.8.5"}
    rows = [["the parser alone, one core", f"{found['parser_mb_s']:.0f} MB/s"]]
    for engine, rates in found["lines_s"].items():
        text = f"{_median(rates):,.0f} lines/s ({min(rates):,.0f} to {max(rates):,.0f})"
        rows.append([f"an epoch over a QueueDataset, {names[engine]}", text])
    return table(["what", ""], [*rows, ["of a CTR-DNN epoch, waits for data", f"{found['waits']:.1%}"]])


def _quality(found: Found) -> str:
    def cell(values: list[float]) -> str:
        return f"{sum(values) / len(values):.4f} ({min(values):.4f} to {max(values):.4f})"

    fluids = [auc.get("paddle.fluid") for auc in found["auc"].values()]
    rows = [
        [strategy, cell(auc["jfluid"]), cell(theirs) if theirs else ""]
        for (strategy, auc), theirs in zip(found["auc"].items(), fluids)
    ]
    title = f"test AUC, {found['best']:.4f} is the best reachable"
    return table([title, "jfluid", "Fluid 1.8.5"], rows)


def _servers(found: Found) -> str:
    def cell(one: Found) -> str:
        if "to_fluid" not in one:
            return ""
        ratio = one["to_fluid"]
        return f"{ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"

    rows = []
    for size, jobs in found.items():
        alone = jobs["local"]["cpu_ms"]
        for name, one in jobs.items():
            against = one.get("to_local")
            rows.append(
                [
                    size,
                    "no servers" if name == "local" else name.replace("paddle.fluid", "Fluid"),
                    _ms(one["ms"]),
                    f"{one['cpu_ms']:.1f}",
                    f"{one['server_cpu_ms']:.1f}" if "server_cpu_ms" in one else "",
                    f"{(one['cpu_ms'] + one['server_cpu_ms']) / alone:.2f}" if "server_cpu_ms" in one else "",
                    f"{one['examples_s']:,.0f}" if "examples_s" in one else "",
                    f"{against['ratio']:.2f} ({against['low']:.2f} to {against['high']:.2f})" if against else "",
                    cell(one),
                ]
            )
    titles = ["trainers + servers", "job", "ms a step", "processor ms of a trainer", "of servers"]
    titles += ["both against no servers", "examples/s", "against no servers", "Fluid's against it"]
    return table(titles, rows) + "\n" + _parts_of_steps(found)


_STEP = ("rows", "feed", "compute", "gradients", "exchange", "install")
_CALL = ("encode", "call", "decode")
_SERVER = ("parse", "apply", "read", "reply")


def _parts_of_steps(found: Found) -> str:
    """Where the ms of a trainer's step went, of its calls, and of them at the servers."""
    rows = []
    for size, jobs in found.items():
        for name, one in jobs.items():
            parts = one.get("parts", {})
            if "compute" not in parts:
                continue
            keys = [*_STEP, *_CALL, *(f"server's {part}" for part in _SERVER)]
            rows.append([size, name, *(f"{parts.get(key, 0.0):.2f}" for key in keys)])
    if not rows:
        return ""
    titles = ["trainers + servers", "job", *_STEP, *_CALL, *(f"server's {p}" for p in _SERVER)]
    return table(titles, rows)


def _tables(found: Found) -> str:
    rows = [[what, f["text"], "" if f["goal"] is None else f"{f['goal']:g}"] for what, f in found.items()]
    return table(["rows of 16 floats, Adagrad", "found", "goal"], rows)


_TABLES: dict[str, Callable[[Found], str]] = {
    "limit": _limit,
    "detection": _detection,
    "dygraph": _dygraph,
    "operators": _operators,
    "replicas": _replicas,
    "host": _host,
    "heights": _heights,
    "servers": _servers,
    "quality": _quality,
    "tables": _tables,
    "startup": _startup,
    "memory": _memory,
    "feeding": _feeding,
    "dataset": _dataset,
}
