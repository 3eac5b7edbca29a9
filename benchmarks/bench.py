"""Measure the figures of docs/performance.md into a file of JSON, and compare them with committed figures.

    python benchmarks/bench.py [PART ...] [--short] [--out FILE] [--torch PYTHON] [--paddle PYTHON] [--fluid PYTHON]
    python benchmarks/bench.py --check FILE       compares ratios, never times, with the figures that are committed
    python benchmarks/bench.py --keep FILE        puts the figures among those that are committed, and into the docs

The first form runs each part in a separate process. A part that fails is named at the end; the figures of the
remaining parts are kept. `--short` measures less of each part, in half an hour. The second form fails if a ratio
is worse by more than its tolerance. `make bench` runs both. The third form is for a machine without further load.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results.json")


class Part(NamedTuple):
    """A script, what it is given, less of it for --short (None: nothing of it), the interpreters that it
    takes, and whether it compares with Fluid only.
    """

    script: str
    whole: str = ""
    short: str | None = ""
    takes: tuple = ()
    needs_fluid: bool = False


PARTS = {
    "limit": Part("limit.py", "--rounds 7", "--rounds 3", ("torch", "paddle", "fluid")),
    "detection": Part(
        "detection.py",
        "ssd yolov3_tiny crnn --rounds 8",
        "ssd yolov3_tiny crnn --rounds 3",
        ("fluid",),
        True,
    ),
    "dygraph": Part("dygraph.py", "--rounds 8", "--rounds 6", ("fluid",)),
    "operators": Part("dygraph.py", "--operators --rounds 8", "--operators --rounds 4", ("fluid",)),
    "replicas": Part("replicas.py", "--rounds 16", "--rounds 8"),
    "host": Part("host.py", "", "--steps 200 --rounds 5"),
    "heights": Part("heights.py", "", "--rounds 4"),
    "servers": Part("servers.py", "--jobs 1+1 2+2", "--jobs 1+1 2+2 --rounds 3", ("fluid",)),
    "quality": Part("quality.py", "", None, ("fluid",)),
    "tables": Part("tables.py", "--grow 100000000", "--seconds 1"),
    "startup": Part("startup.py", "", "--operators 1000 4000"),
    "memory": Part("memory.py", "--optimizers sgd momentum adam", "--layers 4 --optimizers sgd momentum adam"),
    "feeding": Part("feeding.py", "", "--steps 30", ("fluid",)),
    "dataset": Part("dataset.py", "", "--lines 60000 --rounds 2", ("fluid",)),
}
# How much worse a ratio may be than the committed one: shared machines vary by as much.
TOLERANCE = 1.25


def processor():
    """The processor's name, with its family and model, by which those of one name differ."""
    with open("/proc/cpuinfo") as file:
        fields = [[part.strip() for part in line.split(":", 1)] for line in file if ":" in line]
    first = dict(reversed(fields))  # of the first processor
    if "model name" not in first:
        return platform.processor()
    numbers = ["%s %s" % (n.split()[-1], first[n]) for n in ("cpu family", "model") if n in first]
    return ", ".join([first["model name"], *numbers])


def machine():
    """What runs the benchmarks; how many others want its cores just now."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "jax": importlib.metadata.version("jax"),
    }


def commit():
    """The commit of the working tree; with a + where it holds changes."""
    git = ["git", "-C", HERE]
    name = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
    changed = subprocess.check_output([*git, "status", "--porcelain", "-uno"], text=True)
    return name + "+" * bool(changed.strip())


def measure(name, short, interpreters):
    """{"command", "machine", "commit", "date", "seconds", "found"} of a part."""
    part = PARTS[name]
    arguments = (part.short if short else part.whole).split()
    shown = ["python", "benchmarks/" + part.script, *arguments]
    shown += ["--%s PYTHON" % i for i in part.takes if interpreters.get(i)]
    given = [o for i in part.takes if interpreters.get(i) for o in ("--" + i, interpreters[i])]
    found = {"command": " ".join(shown), "machine": machine(), "commit": commit()}
    found["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "found.json")
        command = [sys.executable, os.path.join(HERE, part.script), *arguments, *given]
        subprocess.run([*command, "--json", out], check=True, env=_variables(folder))
        found["seconds"] = round(time.perf_counter() - begin)
        with open(out) as file:
            return dict(found, found=json.load(file))


def _variables(folder):
    """The environment of a part: on processors of AMD, Fluid's MKL takes its fast path."""
    root = os.path.dirname(HERE)
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    fast = {} if "Intel" in processor() else {"MKL_DEBUG_CPU_TYPE": "5"}
    return {**fast, **os.environ, "PYTHONPATH": path}


def run(names, short, interpreters, out):
    """Measure parts, write what there is after each, and return why others failed, by name."""
    results, failed = {"parts": {}}, {}
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    for name in names:
        print("\n## %s\n" % name, flush=True)
        if short and PARTS[name].short is None:
            print("left out: there is no short form of it")
            continue
        if PARTS[name].needs_fluid and not interpreters.get("fluid"):
            print("left out: it compares with Fluid, which --fluid PYTHON would name")
            continue
        try:
            results["parts"][name] = measure(name, short, interpreters)
        except (subprocess.CalledProcessError, OSError, ValueError) as error:
            failed[name] = str(error)
            continue
        with open(out, "w") as file:
            json.dump(results, file, indent=1)
        print("(%d s)" % results["parts"][name]["seconds"], flush=True)
    return failed


def ratios(parts):
    """name -> a ratio of which less is better."""
    from turns import ratio

    of = {name: part["found"] for name, part in parts.items()}
    found = {}
    for model, engines in of.get("limit", {}).get("engines", {}).items():
        for other in engines.keys() - {"jfluid"}:
            name = "limit: %s against %s" % (model, other)
            found[name] = 1 / ratio(engines["jfluid"], engines[other])
            memory = engines["jfluid"]["model_mb"] / engines[other]["model_mb"]
            found[name + ", memory"] = memory
    for model, against in of.get("detection", {}).items():
        found["detection: %s against Fluid" % model] = 1 / against["ratio"]
    for model, ways in of.get("dygraph", {}).items():
        for other in ways.keys() - {"jfluid, eager"}:
            name = "dygraph: %s against %s" % (model, other)
            found[name] = 1 / ratio(ways["jfluid, eager"], ways[other])
    for model, modes in of.get("replicas", {}).items():
        for other in ("jfluid one", "jfluid apart"):
            name = "replicas: %s against %s" % (model, other.split()[1])
            found[name] = 1 / ratio(modes["jfluid replicas"], modes[other])
    for kind, times in of.get("host", {}).items():
        found["host: %s" % kind] = times["run_us"] / times["call_us"]
    for optimizer, height in of.get("heights", {}).items():
        found["heights: %s" % optimizer] = height["ratio"]
    for size, jobs in of.get("servers", {}).items():
        for job, figures in jobs.items():
            if "to_local" in figures and not job.endswith("fluid"):
                found["servers: %s, %s against none" % (size, job)] = figures["to_local"]["ratio"]
    for optimizer, modes in of.get("memory", {}).get("optimizers", {}).items():
        found["memory: %s" % optimizer] = modes["Reduce"] / modes["one device"]
    best = of.get("quality", {}).get("best")
    for strategy, aucs in of.get("quality", {}).get("auc", {}).items():
        lost = best - sum(aucs["jfluid"]) / len(aucs["jfluid"])
        found["quality: %s, what is left below the best" % strategy] = lost / best
    if "startup" in of:
        found["startup: operators compile in linear time"] = of["startup"]["linear"]
    return found


def worse(parts, committed, tolerance=TOLERANCE):
    """The ratios that have become worse, each as a line; those that are missing; and the parts that
    another machine measured, whose ratios are not compared.
    """
    lines = []
    for name in sorted(parts.keys() & committed.keys()):
        now, before = parts[name], committed[name]
        if now["machine"]["processor"] != before["machine"]["processor"]:
            print("%s: committed figures are of another processor, not compared" % name)
            continue
        news, olds = ratios({name: now}), ratios({name: before})
        for key in sorted(olds):
            if key not in news:
                lines.append("%s: not measured any more" % key)
            elif news[key] > olds[key] * tolerance:
                shown = key, news[key], olds[key], before["commit"]
                lines.append("%s: %.3f, was %.3f (%s)" % shown)
    return lines


def check(path, against):
    """Print the ratios of a file that are worse than the committed ones; 1 if there are any."""
    if not os.path.exists(against):
        print("%s is not there: nothing to compare with" % against)
        return 0
    with open(path) as file, open(against) as other:
        lines = worse(json.load(file)["parts"], json.load(other)["parts"])
    print("\n".join(lines) or "no ratio is worse than in %s by more than %s" % (against, TOLERANCE))
    return min(len(lines), 1)


def keep(path, kept):
    """Put the parts of a file in the place of those among the committed figures, and make the docs' tables
    anew.
    """
    parts = {}
    for name in (kept, path):
        if os.path.exists(name):
            with open(name) as file:
                parts.update(json.load(file)["parts"])
    with open(kept, "w") as file:
        json.dump({"parts": parts}, file, indent=1)
        file.write("\n")
    return subprocess.run([sys.executable, "-m", "scripts.pages"], cwd=os.path.dirname(HERE)).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--short", action="store_true", help="less of each part")
    parser.add_argument("--out", default=os.path.join("build", "bench.json"))
    parser.add_argument("--torch", help="an interpreter that has PyTorch 2 and NumPy")
    parser.add_argument("--paddle", help="an interpreter that has Paddle 3")
    parser.add_argument("--fluid", help="an interpreter that can import paddle.fluid")
    parser.add_argument("--check", metavar="FILE", help="compare FILE, run nothing")
    parser.add_argument("--keep", metavar="FILE", help="commit to FILE, run nothing")
    parser.add_argument("--against", default=RESULTS, metavar="FILE")
    args = parser.parse_args()
    if args.check and not os.path.isfile(args.check):
        parser.error("--check %s: there is no such file: a run of this command writes it (--out)" % args.check)
    if args.check:
        return check(args.check, args.against)
    if args.keep:
        return keep(args.keep, args.against)
    unknown = [name for name in args.parts if name not in PARTS]
    if unknown:
        parser.error("no such part: %s (there are %s)" % (", ".join(unknown), ", ".join(PARTS)))
    interpreters = {"torch": args.torch, "paddle": args.paddle, "fluid": args.fluid}
    for name, python in interpreters.items():
        if python and shutil.which(python) is None:
            parser.error("--%s %s: there is no such interpreter: name the path of a Python" % (name, python))
    failed = run(args.parts, args.short, interpreters, args.out)
    for name, why in failed.items():
        print("%s failed: %s" % (name, why), file=sys.stderr)
    print("\n%s" % args.out)
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main())
