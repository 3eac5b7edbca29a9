"""Tables of docs/performance.md, made from the figures in benchmarks/results.json.

A table stands between `<!-- figures: PART -->`, or `<!-- summary -->`, and `<!-- end -->`. The page keeps the old
table of a part that results.json lacks. A table has at most six columns, and a caption before it.
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
_MOST_COLUMNS = 6
_SUMMARY = re.compile(r"(<!-- summary -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
# Engines a user chooses between, and the prefix of the names under which an engine was measured.
CHOICES = {
    "Fluid 1.8.5": "Fluid",
    "hand-written JAX": "JAX",
    "PyTorch 2": "PyTorch",
    "Paddle 3": "Paddle",
}

Found = dict[str, Any]


def page() -> str:
    """Return the text of the page."""
    parts = json.loads(RESULTS.read_text())["parts"] if RESULTS.exists() else {}
    return filled(_PAGE.read_text(), parts)


def filled(text: str, parts: dict[str, Found]) -> str:
    """Return the page with the figures of all parts in their regions.

    Raises ValueError: a region names no part, or a measured part has no region.
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
    return (
        f"Measured by `{part['command']}` on {part['date']} (commit {part['commit']}). Machine: {machine['cores']} "
        "cores "
        f"({machine['processor']}), load {machine['load']} before, Python {machine['python']}, JAX {machine['jax']}.\n"
    )


def _captioned(caption: str, titles: list[str], rows: list[list[str]]) -> str:
    """Return a table below its caption; divide a table of too many columns, and repeat the first column."""
    most = _MOST_COLUMNS - 1
    tables = [
        table([titles[0], *titles[i : i + most]], [[row[0], *row[i : i + most]] for row in rows])
        for i in range(1, len(titles), most)
    ]
    return f"{caption}\n\n" + "\n".join(tables)


def _median(values: list[float]) -> float:
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def ratios(ours: Found, theirs: Found) -> list[float]:
    """Return the time of theirs divided by ours for each round, in ascending order."""
    return sorted(b / a for a, b in zip(ours["rounds"], theirs["rounds"]))


def fastest(timed: Found, begin: str) -> Found | None:
    """Return the fastest measurement with a name that begins with `begin`, or None if there is none."""
    ways = [way for name, way in timed.items() if name.startswith(begin)]
    return min(ways, key=lambda way: float(way["ms"]), default=None)


def _times(ours: Found, theirs: Found) -> str:
    """Return the median of the ratios with their range."""
    found = ratios(ours, theirs)
    return f"{_median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _summary(parts: dict[str, Found], shown: list[str]) -> str:
    """Return the table of ratios to the fastest measurement of each engine."""
    rows = [row for name in shown for row in _SUMMARIES[name](parts[name]["found"])]
    titles = [f"{name} / jfluid" for name in CHOICES]
    caption = (
        "Second column: milliseconds a step of jfluid (lower is better). Further columns: the engine's time divided by "
        "jfluid's; above 1, jfluid is faster. An empty cell was not measured."
    )
    return _captioned(caption, ["program", "jfluid, ms a step", *titles], rows)


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
    caption = "Limits of the machine (higher is better): arithmetic in GFLOP/s, memory in GB/s."
    return _captioned(caption, ["operation", "rate"], rows)


def _programs(found: Found) -> str:
    columns = ("compute_ms", "copy_ms", "host_ms", "wait_ms")
    times, work = [], []
    for model, p in found["programs"].items():
        step = f"{_ms(p['ms'])} ({_ms(p['low'])} to {_ms(p['high'])})"
        times.append([model, step, *(f"{p[c]:.2f}" for c in columns)])
        shares = [f"{100 * p[name]:.0f}%" for name in ("of_peak", "products_of_peak", "of_bandwidth")]
        memory = f"{p['gbytes']:.2f} ({shares[2]})"
        work.append([model, f"{p['gflop']:.2f}", shares[0], f"{p['products_ms']:.2f}", shares[1], memory])
    caption = (
        "Milliseconds a step on one device, and its parts (lower is better): the compiled function alone, copies of "
        "feed "
        "and loss, processor time of the host beyond both, and waiting. The parts are measured separately, so that a "
        "small part may come out negative."
    )
    first = _captioned(caption, ["program", "step, ms", "compute, ms", "copy, ms", "host, ms", "wait, ms"], times)
    caption = (
        "Work of a step: arithmetic that the model needs, with its share of the machine's peak (higher is better); "
        "milliseconds of matrix products, convolutions and LSTM loops, with the share of the peak in these; memory "
        "read and written, with its share of the bandwidth."
    )
    titles = ["program", "GFLOP", "of the peak", "products, ms", "of the peak in products", "GB (of the bandwidth)"]
    return first + "\n" + _captioned(caption, titles, work)


def _engines(found: Found) -> str:
    names = _others(found)
    rows = []
    for model, timed in found["engines"].items():
        ours = timed["jfluid"]
        cells = [f"{_ms(timed[n]['ms'])}: {_times(ours, timed[n])}" if n in timed else "" for n in names]
        best = min((n for n in names if n in timed), key=lambda n: timed[n]["ms"])
        ahead = _times(ours, timed[best]).split()[0]
        rows.append([model, _ms(ours["ms"]), *cells, f"{best}: {ahead}"])
    caption = (
        "Milliseconds a step (lower is better). Behind the colon: the engine's time divided by jfluid's, median and "
        "range of the rounds; above 1, jfluid is faster."
    )
    return _captioned(caption, ["program", "jfluid", *names, "the fastest engine beside jfluid"], rows)


def _mb(found: Found) -> str:
    names = ["jfluid", *_others(found)]
    rows = [
        [model, *(f"{timed[n]['model_mb']:.0f}" if n in timed else "" for n in names)]
        for model, timed in found["engines"].items()
    ]
    caption = "Peak of memory in MB, without the memory that importing the engine takes (lower is better)."
    return _captioned(caption, ["program", *names], rows)


def _others(found: Found) -> list[str]:
    """Return the engines besides jfluid, in the order of their first appearance."""
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
    caption = (
        "Milliseconds a step (lower is better), and the time of Fluid divided by jfluid's, each in its faster way; "
        "above 1, jfluid is faster."
    )
    return _captioned(caption, ["program", "Fluid 1.8.5, ms", "jfluid, ms", "Fluid / jfluid"], rows)


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
    caption = (
        "Milliseconds a step, in brackets processor milliseconds (lower is better). Behind the colon: the time "
        "divided by that of jfluid's eager step; above 1, the eager step is faster."
    )
    return _captioned(caption, ["program", *(f"{engines[e]}, {kinds[k]}" for e, k in ways)], rows)


def _operators(found: Found) -> str:
    rows = [
        [
            "Fluid 1.8.5" if engine == "paddle.fluid" else engine,
            f"{f['median']:.1f} ({f['low']:.1f} to {f['high']:.1f})",
            f"{f['processor']:.1f}",
        ]
        for engine, f in found.items()
    ]
    caption = "Microseconds an eager operator, by the clock and of processor time (lower is better)."
    return _captioned(caption, ["engine", "clock, µs", "processor, µs"], rows)


def _replicas(found: Found) -> str:
    modes = {
        "jfluid one": "one device, ms",
        "jfluid replicas": "two replicas as one program, ms",
        "jfluid apart": "two devices, AllReduce, ms",
        "jfluid reduce": "two devices, Reduce, ms",
    }
    rows = []
    for model, timed in found.items():
        best = min(("jfluid one", "jfluid apart"), key=lambda mode: timed[mode]["ms"])
        ratio = _times(timed[best], timed["jfluid replicas"])
        rows.append([model, *(_ms(timed[mode]["ms"]) for mode in modes), ratio])
    caption = (
        "Milliseconds a step of the same batch (lower is better). Last column: the time of two replicas as one "
        "program, divided by the faster of one device and two devices with AllReduce; the goal is at most 1.05."
    )
    return _captioned(caption, ["program", *modes.values(), "one program / faster"], rows)


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
    caption = (
        "Processor microseconds of the calling thread: of `Executor.run`, of XLA's call in it, and the difference, "
        "which is jfluid's part (lower is better; the goal is 60). Last column: the same difference by the clock."
    )
    titles = ["feed", "`Executor.run`, µs", "XLA's call, µs", "difference, µs", "difference by the clock, µs"]
    return _captioned(caption, titles, rows)


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
    caption = "Milliseconds a step by the height of the table (lower is better); the goal for the ratio is at most 1.1."
    return _captioned(caption, ["optimizer", *(f"{int(h):,} rows, ms" for h in heights), "ratio"], rows)


def _startup(found: Found) -> str:
    rows = [
        ["import jfluid", f"{found['import']:.2f}"],
        ["build the ResNet-50 training program", f"{found['resnet50_built']:.2f}"],
        ["resnet_cifar, first start to the end of step 1", f"{found['first']:.2f}"],
        ["resnet_cifar, second start to the end of step 1", f"{found['second']:.2f}"],
    ]
    for long in found["long"]:
        rows.append([f"build {long['operators']} operators (processor time)", f"{long['build']:.2f}"])
        rows.append([f"first step of {long['operators']} operators (processor time)", f"{long['first']:.2f}"])
    caption = (
        "Seconds from the start of the interpreter, by the clock unless the row says otherwise (lower is better). An "
        "operator "
        f"of the longest program takes {found['linear']:.2f} times the processor time of an operator of the shortest."
    )
    return _captioned(caption, ["start", "seconds"], rows)


def _memory(found: Found) -> str:
    rows = [
        [optimizer, f"{f['one device']:.0f}", f"{f['Reduce']:.0f}"] + [f"{f['Reduce'] / f['one device']:.2f}"]
        for optimizer, f in found["optimizers"].items()
    ]
    caption = (
        f"Peak of resident memory in MiB, of which {found['parameters_mb']:.0f} are parameters, and the ratio of both "
        "(lower is better)."
    )
    titles = ["optimizer", "one device, MiB", f"{found['replicas']} replicas, Reduce, MiB", "ratio"]
    return _captioned(caption, titles, rows)


def _feeding(found: Found) -> str:
    first = next(iter(found["models"].values()))["jfluid"]["loaders"]
    steps, waits = [], []
    for model, engines in found["models"].items():
        for engine, f in engines.items():
            name = f"{model}, {engine if engine == 'jfluid' else 'Fluid 1.8.5'}"
            steps.append([name, _ms(f["fed_ms"]), _ms(f["loaders"][0]["ms"])])
            waits.append([name, *(f"{100 * one['waits']:.1f}%" for one in f["loaders"])])
    rate = found["crossing"]
    caption = (
        "Milliseconds a step with arrays as feed, and from a loader with a reader that takes no time (lower is better)."
    )
    fed = _captioned(caption, ["program, engine", "fed, ms", "from a loader, ms"], steps)
    caption = (
        "Share of the training loop spent waiting for the loader, by the reader's time for a batch as a share of a "
        "step (lower is better)."
    )
    titles = ["program, engine", *(f"reader at {100 * one['busy']:.0f}%" for one in first)]
    crossing = f"{rate['median']:.0f} MB/s ({rate['low']:.0f} to {rate['high']:.0f})"
    return f"{fed}\n{_captioned(caption, titles, waits)}\nA reader process delivers {crossing}.\n"


def _dataset(found: Found) -> str:
    names = {"jfluid": "jfluid", "paddle.fluid": "Fluid 1.8.5"}
    rows = [["the parser alone, one core", f"{found['parser_mb_s']:.0f} MB/s"]]
    for engine, rates in found["lines_s"].items():
        text = f"{_median(rates):,.0f} lines/s ({min(rates):,.0f} to {max(rates):,.0f})"
        rows.append([f"an epoch over a QueueDataset, {names[engine]}", text])
    rows.append(["share of a CTR-DNN epoch spent waiting for data", f"{found['waits']:.1%}"])
    caption = "Throughput (higher is better) and waiting (lower is better), with the range of the rounds."
    return _captioned(caption, ["part", "figure with its unit"], rows)


def _quality(found: Found) -> str:
    def cell(values: list[float]) -> str:
        return f"{sum(values) / len(values):.4f} ({min(values):.4f} to {max(values):.4f})"

    fluids = [auc.get("paddle.fluid") for auc in found["auc"].values()]
    rows = [
        [strategy, cell(auc["jfluid"]), cell(theirs) if theirs else ""]
        for (strategy, auc), theirs in zip(found["auc"].items(), fluids)
    ]
    caption = (
        "Test AUC (higher is better), mean and range of the runs. The generator of the clicks itself reaches "
        f"{found['best']:.4f}."
    )
    return _captioned(caption, ["strategy", "jfluid", "Fluid 1.8.5"], rows)


def _servers(found: Found) -> str:
    parts = []
    for size, jobs in found.items():
        trainers, servers = size.split("+")
        parts.append(f"### {trainers} trainer{'s' * (trainers != '1')}, {servers} server{'s' * (servers != '1')}\n")
        parts += [_clock(jobs), _processor(jobs), *_parts_of_steps(jobs)]
    return "\n".join(parts)


def _clock(jobs: Found) -> str:
    def ratio(one: Found, name: str) -> str:
        return f"{one[name]['ratio']:.2f} ({one[name]['low']:.2f} to {one[name]['high']:.2f})" if name in one else ""

    rows = [
        [
            _job(name),
            _ms(one["ms"]),
            f"{one['examples_s']:,.0f}" if "examples_s" in one else "",
            ratio(one, "to_local"),
            ratio(one, "to_fluid"),
        ]
        for name, one in jobs.items()
    ]
    caption = (
        "Milliseconds a step by the clock (lower is better), and examples a second (higher is better). Ratios: the "
        "time "
        "divided by that of training without servers in the same rounds (lower is better), and Fluid's time divided by "
        "jfluid's (above 1, jfluid is faster)."
    )
    return _captioned(caption, ["job", "step, ms", "examples/s", "job / no servers", "Fluid / jfluid"], rows)


def _processor(jobs: Found) -> str:
    rows = []
    for name, one in jobs.items():
        servers = one.get("server_cpu_ms")
        both = "" if servers is None else f"{(one['cpu_ms'] + servers) / jobs['local']['cpu_ms']:.2f}"
        rows.append([_job(name), f"{one['cpu_ms']:.1f}", "" if servers is None else f"{servers:.1f}", both])
    caption = (
        "Processor milliseconds a step of a trainer and of its servers, and their sum divided by that of training "
        "without servers (lower is better)."
    )
    return _captioned(caption, ["job", "trainer, ms", "servers, ms", "both / no servers"], rows)


def _job(name: str) -> str:
    return "no servers" if name == "local" else name.replace("paddle.fluid", "Fluid")


_STEP = ("rows", "feed", "compute", "gradients", "exchange", "install")
_CALL = ("encode", "call", "decode")
_SERVER = ("parse", "apply", "read", "reply")


def _parts_of_steps(jobs: Found) -> list[str]:
    """Return a table for each transport: milliseconds of a step's parts, of its calls, and of the server's work."""
    by_transport: dict[str, dict[str, Found]] = {}
    for name, one in jobs.items():
        strategy, _, transport = name.partition(", ")
        if "compute" in one.get("parts", {}):
            by_transport.setdefault(transport, {})[strategy] = one["parts"]
    keys = [*_STEP, *_CALL, *(f"server's {part}" for part in _SERVER)]
    return [
        _captioned(
            "Milliseconds of the parts of a step, of its calls to servers, and of the servers' work for a call; "
            f"{transport} as transport (lower is better).",
            ["part", *(f"{strategy}, ms" for strategy in strategies)],
            [[key, *(f"{parts.get(key, 0.0):.2f}" for parts in strategies.values())] for key in keys],
        )
        for transport, strategies in by_transport.items()
    ]


def _tables(found: Found) -> str:
    rows = [[what, f["text"], "" if f["goal"] is None else f"{f['goal']:g}"] for what, f in found.items()]
    caption = (
        "Rows of 16 floats with Adagrad in million rows a second (M rows/s; higher is better) unless the row says "
        "otherwise, with the range of the rounds, and the goal."
    )
    return _captioned(caption, ["operation", "figure with its unit", "goal, M rows/s"], rows)


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
