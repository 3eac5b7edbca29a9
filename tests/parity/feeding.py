"""What loaders give, for any engine that offers the Fluid API: shapes, dtypes, lod, formats, ends
of epochs.

`run` tells what a case gives: values, dtype and lod of tensors, or that it raises.
"""

import numpy as np


def _variables(fluid, lod_level=0):
    return [
        fluid.data("image", [None, 2], "float32"),
        fluid.data("label", [None, 1], "int64", lod_level=lod_level),
    ]


def _samples(count=7):
    def reader():
        for i in range(count):
            yield np.full(2, i, "float32"), np.array([i])

    return reader


def _texts():
    for i in range(7):
        yield np.full(2, i, "float32"), list(range(i % 3 + 1))


def _lists():
    """Lists of samples; those of the label are sequences, one of them empty."""
    for number in range(3):
        yield [(np.full(2, i, "float32"), [[j] for j in range(i)]) for i in range(number, 4)]


def _batches(fluid, lod=False):
    def reader():
        for i in range(3):
            label = np.arange(3).reshape(3, 1) + i
            yield (
                np.full([3, 2], i, "float32"),
                fluid.create_lod_tensor(label, [[1, 2]], fluid.CPUPlace()) if lod else label,
            )

    return reader


def _loader(fluid, places=1, lod_level=0, make=None, **options):
    make = make or fluid.io.DataLoader.from_generator
    return make(feed_list=_variables(fluid, lod_level), capacity=4, **options), fluid.cpu_places(places)


def _of_samples(places=1, keep=False, reader=None, lod_level=0, **options):
    def build(fluid):
        loader, devices = _loader(fluid, places, lod_level, **options)
        loader.set_sample_generator(reader or _samples(), batch_size=2, drop_last=not keep, places=devices)
        return list(loader())

    return build


def _of_lists(fluid):
    loader, devices = _loader(fluid, lod_level=1)
    return list(loader.set_sample_list_generator(_lists, devices)())


def _of_batches(lod=False, **options):
    def build(fluid):
        loader, devices = _loader(fluid, lod_level=int(lod), **options)
        return list(loader.set_batch_generator(_batches(fluid, lod), devices)())

    return build


def _two_levels(fluid):
    texts = fluid.data("texts", [None, 1], "int64", lod_level=2)
    loader = fluid.io.DataLoader.from_generator(feed_list=[texts], capacity=2)
    loader.set_sample_generator(lambda: iter([([[1, 2], [3]],), ([[4]],)]), 2, places=fluid.cpu_places(1))
    return list(loader())


def _place_alone(fluid):
    loader, _ = _loader(fluid)
    loader.set_sample_generator(_samples(), 3, places=fluid.CPUPlace())
    return list(loader())


def _py_reader_decorations(fluid):
    found = []
    for decorate in ("sample", "sample_list", "batch"):
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            reader, devices = _loader(fluid, make=fluid.io.PyReader)
            if decorate == "sample":
                reader.decorate_sample_generator(_samples(), 3, places=devices)
            elif decorate == "sample_list":
                reader.decorate_sample_list_generator(fluid.io.batch(_samples(), 3), devices)
            else:
                reader.decorate_batch_generator(_batches(fluid), devices)
            found.append(list(reader()))
    return found


def _iterates_again(fluid):
    loader, devices = _loader(fluid)
    loader.set_sample_generator(_samples(), 3, places=devices)
    return [sum(1 for _ in loader) for _ in range(3)]


def _epochs(fluid, start, reset, fetch, epochs=2):
    """Sums of each batch, and "end" where the reader has no more."""
    exe, found = fluid.Executor(fluid.CPUPlace()), []
    exe.run(fluid.default_startup_program())
    for _ in range(epochs):
        start()
        try:
            while True:
                found.append(float(np.sum(exe.run(fetch_list=[fetch])[0])))
        except fluid.core.EOFException:
            found.append("end")
            reset()
    return found


def _read_by_the_program(make="DataLoader", **options):
    def build(fluid):
        made = fluid.io.DataLoader.from_generator if make == "DataLoader" else fluid.io.PyReader
        loader, _ = _loader(fluid, iterable=False, make=made, **options)
        total = fluid.layers.reduce_sum(fluid.default_main_program().global_block().var("image"))
        (loader.set_sample_generator if make == "DataLoader" else loader.decorate_sample_generator)(
            _samples(), 3, drop_last=False
        )
        kinds = [op.type for op in fluid.default_main_program().global_block().ops]
        return [kinds, _epochs(fluid, loader.start, loader.reset, total)]

    return build


def _read_ragged(fluid):
    """A bag of embeddings over sequences that the program reads."""
    loader, _ = _loader(fluid, lod_level=1, iterable=False)
    label = fluid.default_main_program().global_block().var("label")
    rows = fluid.layers.embedding(
        label, [10, 3], param_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(0.5))
    )
    pooled = fluid.layers.sequence_pool(rows, "sum")
    loader.set_sample_generator(_texts, 3, drop_last=False)
    return _epochs(fluid, loader.start, loader.reset, pooled)


def _read_in_a_clone(fluid):
    loader, _ = _loader(fluid, iterable=False)
    total = fluid.layers.reduce_sum(fluid.default_main_program().global_block().var("image"))
    loader.set_sample_generator(_samples(), 3)
    test = fluid.default_main_program().clone(for_test=True)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    loader.start()
    sums = [float(np.sum(exe.run(program, fetch_list=[total.name])[0])) for program in (None, test)]
    loader.reset()
    return sums


def _layers_reader(by_data, name=None, buffer=False):
    def build(fluid):
        if by_data:
            reader = fluid.layers.create_py_reader_by_data(4, _variables(fluid), name, use_double_buffer=not buffer)
        else:
            reader = fluid.layers.py_reader(4, [(-1, 2), (-1, 1)], ["float32", "int64"], [0, 0], name, not buffer)
        reader.decorate_paddle_reader(fluid.io.batch(_samples(), 3))
        start, reset = reader.start, reader.reset
        if buffer:
            reader = fluid.layers.double_buffer(reader)
        image, label = fluid.layers.read_file(reader)
        total = fluid.layers.reduce_sum(image)
        kinds = [
            [op.type for op in program.global_block().ops]
            for program in (fluid.default_startup_program(), fluid.default_main_program())
        ]
        described = [[v.name, list(v.shape), int(v.dtype), v.lod_level] for v in (image, label)]
        return [kinds, described, _epochs(fluid, start, reset, total)]

    return build


def _one_slot(fluid):
    reader = fluid.layers.py_reader(2, [(-1, 2)], ["float32"], use_double_buffer=False)
    reader.decorate_batch_generator(lambda: iter([(np.ones((3, 2), "float32"),)]))
    return _epochs(fluid, reader.start, reader.reset, fluid.layers.reduce_sum(fluid.layers.read_file(reader)))


def _refused(build):
    """Whether it raises: the errors are each engine's own."""

    def attempt(fluid):
        try:
            build(fluid)
        except Exception:
            return "raises"
        return "gives a result"

    return attempt


def _failing():
    yield np.zeros(2, "float32"), np.array([1])
    raise KeyError("bad")


def _wrong_use(fluid, use, **options):
    loader, devices = _loader(fluid, **options)
    use(loader.set_sample_generator(_samples(), 3, places=devices))


CASES = {
    "samples": _of_samples(),
    "samples, the last batch kept": _of_samples(keep=True),
    "samples, without double buffer": _of_samples(use_double_buffer=False),
    "samples, as lists": _of_samples(return_list=True),
    "samples, two places": _of_samples(2),
    "samples, two places, the last group kept": _of_samples(2, keep=True, drop_last=False, reader=_samples(9)),
    "samples, two places, the last group dropped": _of_samples(2, keep=True, reader=_samples(9)),
    "samples, two places, as lists": _of_samples(2, return_list=True),
    "samples with sequences": _of_samples(reader=_texts, lod_level=1, keep=True),
    "sample lists with sequences": _of_lists,
    "batches": _of_batches(),
    "batches with a lod": _of_batches(lod=True),
    "batches with a lod, without double buffer": _of_batches(lod=True, use_double_buffer=False),
    "two levels": _two_levels,
    "a place alone": _place_alone,
    "PyReader": _py_reader_decorations,
    "iterating again": _iterates_again,
    "read by the program": _read_by_the_program(),
    "read by the program, without double buffer": _read_by_the_program(use_double_buffer=False),
    "read by the program, PyReader": _read_by_the_program("PyReader"),
    "sequences read by the program": _read_ragged,
    "read in a clone": _read_in_a_clone,
    "py_reader": _layers_reader(False),
    "py_reader with a name": _layers_reader(False, "feeding"),
    "py_reader, double_buffer": _layers_reader(False, buffer=True),
    "create_py_reader_by_data": _layers_reader(True),
    "py_reader of one slot": _one_slot,
    "no capacity": _refused(lambda fluid: fluid.io.DataLoader.from_generator(feed_list=_variables(fluid))),
    "no feed_list": _refused(lambda fluid: fluid.io.DataLoader.from_generator(capacity=2)),
    "no reader": _refused(lambda fluid: list(_loader(fluid)[0]())),
    "no places": _refused(lambda fluid: _loader(fluid)[0].set_sample_generator(_samples(), 3)),
    "start of an iterable loader": _refused(lambda fluid: _wrong_use(fluid, lambda loader: loader.start())),
    "iterating over what the program reads": _refused(lambda fluid: _wrong_use(fluid, list, iterable=False)),
    "fewer arrays than variables": _refused(
        lambda fluid: list(
            _loader(fluid)[0].set_batch_generator(lambda: iter([(np.zeros((3, 2), "float32"),)]), fluid.cpu_places(1))()
        )
    ),
    "a failing reader": _refused(_of_samples(reader=_failing, keep=True)),
}


def run(fluid, case):
    """What case `case` of CASES gives, in lists and dicts of numbers."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(
        fluid.Scope()
    ), fluid.unique_name.guard():
        return _shown(CASES[case](fluid))


def _shown(value):
    if isinstance(value, dict):
        return {name: _shown(value[name]) for name in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_shown(v) for v in value]
    if hasattr(value, "lod"):
        array = np.array(value)
        return {"value": array.tolist(), "dtype": str(array.dtype), "lod": value.lod()}
    return value
