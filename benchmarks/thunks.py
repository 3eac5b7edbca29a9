"""How much of a compiled step's time on a CPU its products and convolutions take, by XLA's own profile of it."""

import bisect
import glob
import os
import re
import tempfile

import jax

from jfluid.record import fusion_shares

# An instruction of a compiled module, and what tells that it multiplies matrices: itself, the library or the
# machine code of jfluid that it calls, or the computation that it is a name for.
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_LIBRARY = re.compile(r"^jfluid_(?!row_)|matmul|convolution|dot")
_SAME = ("bitcast", "get-tuple-element", "tuple")  # what XLA does nothing for


def of_products(text):
    """Names of the instructions of a compiled module, its text, that are products or convolutions.

    A loop over time that is machine code of jfluid counts whole, with its gates.
    """
    found, inside, calls = set(), set(), {}
    for computation, name, _, kind, rest in fusion_shares.instructions(text):
        target = _TARGET.search(rest) if kind == "custom-call" else None
        if kind in ("dot", "convolution") or (target and _LIBRARY.search(target.group(1))):
            found.add(name)
            inside.add(computation)
        elif kind == "fusion":
            calls[name] = fusion_shares.called_by(rest)
    return found | {name for name, called in calls.items() if called in inside}


def _readers(text):
    """The instructions that begin when another has ended, by the name of that one."""
    found, same = {}, set()
    for _, name, _, kind, rest in fusion_shares.instructions(text):
        if kind in _SAME:
            same.add(name)
        for read in fusion_shares.operands(rest):
            found.setdefault(read, set()).add(name)

    def readers(name):
        for reader in found.get(name, ()):
            yield from readers(reader) if reader in same else (reader,)

    return {name: set(readers(name)) for name in found}


def _ended(events, readers):
    """The events, each ended when the first of its readers begins: XLA may say that one has ended after
    it has gone on with those.
    """
    begins = {}
    for name, begin, _ in events:
        begins.setdefault(name, []).append(begin)
    for name, begin, end in events:
        for reader in readers.get(name, ()):
            theirs = begins.get(reader, [])
            i = bisect.bisect_left(theirs, begin)
            end = min(end, theirs[i]) if i < len(theirs) else end
        yield name, begin, end


def _events(run):
    """(name, begin, end) in nanoseconds of the instructions that `run` makes XLA execute, in order."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (path,) = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
        profile = jax.profiler.ProfileData.from_file(path)
        begun, ends = [], {}
        for plane in profile.planes:
            for event in (event for line in plane.lines for event in line.events):
                if event.name.startswith("end: "):
                    ends.setdefault(event.name[5:], []).append(event.start_ns)
                elif any(key == "hlo_op" for key, _ in event.stats):
                    begun.append((event.start_ns, event.duration_ns, event.name))
    # One that runs on other threads has ended when XLA says so: its own event ends when they have begun.
    ends = {name: iter(sorted(times)) for name, times in ends.items()}
    found = []
    for begin, duration, name in sorted(begun):
        end = next((t for t in ends.get(name, ()) if t >= begin), 0)
        found.append((name, begin, max(begin + duration, end)))
    return found


def _covered(spans):
    """How long at least one of the spans lasts, which are in the order of their begin."""
    total, until = 0, 0
    for begin, end in spans:
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def share(run, text):
    """The part, 0 to 1, of the time in which instructions of a module run that its products and convolutions do.

    Args:
        run: runs the module some times.
        text: the compiled module.
    """
    names, events = of_products(text), list(_ended(_events(run), _readers(text)))
    products = [(begin, end) for name, begin, end in events if name in names]
    return _covered(products) / _covered([(begin, end) for _, begin, end in events])
