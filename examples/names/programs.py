"""Examples of programs, executors, files, readers and tools: a cell for each name of Fluid."""

import warnings

import numpy as np

import jfluid as fluid
from jfluid.compat.paddle.check_import_scipy import check_import_scipy
from jfluid.ir import framework_pb2

exe = fluid.Executor(fluid.CPUPlace())
half = fluid.initializer.Constant(0.5)


def linear():
    """A linear model of two features."""
    x = fluid.data("x", [None, 2], "float32")
    return x, fluid.layers.fc(x, 1, param_attr=fluid.ParamAttr(name="w", initializer=half), bias_attr=False)


# %% fluid.Program fluid.framework.program_guard
main, startup = fluid.Program(), fluid.Program()
with fluid.program_guard(main, startup):
    x = fluid.data("x", [None, 2], "float32")
    y = fluid.layers.fc(x, 1)
test = main.clone(for_test=True)
print([op.type for op in test.global_block().ops], len(startup.global_block().ops))  # ['mul', 'elementwise_add'] 2

# %% fluid.default_main_program fluid.default_startup_program
x, y = linear()
print(
    len(fluid.default_main_program().global_block().ops), len(fluid.default_startup_program().global_block().ops)
)  # 1 1

# %% fluid.Variable
x = fluid.data("x", [None, 2], "float32")
y = fluid.layers.scale(x, 2.0)
print(isinstance(y, fluid.Variable), y.name, y.shape, y.dtype == x.dtype, y.stop_gradient)
# True scale_0.tmp_0 (-1, 2) True False

# %% fluid.ComplexVariable
with fluid.dygraph.guard():
    x = fluid.dygraph.to_variable(np.array([1 + 2j, 3 - 1j], "complex64"))
    print(isinstance(x, fluid.framework.ComplexVariable), x.real.numpy(), x.imag.numpy())  # True [1. 3.] [ 2. -1.]

# %% fluid.Executor
x = fluid.data("x", [None, 2], "float32")
y = fluid.layers.fc(x, 1, param_attr=half)
executor = fluid.Executor(fluid.CPUPlace())
executor.run(fluid.default_startup_program())
(found,) = executor.run(fluid.default_main_program(), feed={"x": np.float32([[1, 2]])}, fetch_list=[y])
print(found)  # [[1.5]]

# %% fluid.CompiledProgram fluid.BuildStrategy fluid.ExecutionStrategy
x, y = linear()
loss = fluid.layers.mean(y)
fluid.optimizer.SGD(0.1).minimize(loss)
build, execution = fluid.BuildStrategy(), fluid.ExecutionStrategy()
build.memory_optimize = True
compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
    loss_name=loss.name, build_strategy=build, exec_strategy=execution, places=fluid.cpu_places(1)
)
exe.run(fluid.default_startup_program())
print(exe.run(compiled, feed={"x": np.float32([[1, 2], [3, 4]])}, fetch_list=[loss])[0])  # [2.5]

# %% fluid.ParallelExecutor
x, y = linear()
loss = fluid.layers.mean(y)
exe.run(fluid.default_startup_program())
parallel = fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name)
rows = np.float32([[1, 2]] * parallel.device_count)
print(np.unique(parallel.run(feed={"x": rows}, fetch_list=[loss.name])[0]))  # [1.5]

# %% fluid.Scope fluid.executor.scope_guard fluid.executor.global_scope
x, y = linear()
scope = fluid.core.Scope()
with fluid.scope_guard(scope):
    exe.run(fluid.default_startup_program())
print(np.array(scope.find_var("w").get_tensor()).ravel(), fluid.global_scope().find_var("w"))  # [0.5 0.5] None

# %% fluid.data
x = fluid.data("x", [None, 3, 32, 32], "float32")
print(x.shape)  # (-1, 3, 32, 32)

# %% fluid.layers.data
x = fluid.layers.data("x", [3, 32, 32])  # a dimension for the batch is put before the others
print(x.shape)  # (-1, 3, 32, 32)

# %% fluid.CPUPlace fluid.cpu_places
print(fluid.Executor(fluid.CPUPlace()).run(fetch_list=[fluid.layers.ones([1], "float32")])[0], len(fluid.cpu_places(2)))
# [1.] 2

# %% fluid.CUDAPlace fluid.cuda_places fluid.framework.is_compiled_with_cuda
places = fluid.cuda_places([0]) if fluid.is_compiled_with_cuda() else fluid.cpu_places(1)
executor = fluid.Executor(fluid.CUDAPlace(0) if fluid.is_compiled_with_cuda() else fluid.CPUPlace())
print(len(places))  # 1

# %% fluid.CUDAPinnedPlace fluid.cuda_pinned_places
if fluid.is_compiled_with_cuda():
    print(len(fluid.cuda_pinned_places(2)))
print(type(fluid.CUDAPinnedPlace()).__name__)

# %% fluid.LoDTensor
tensor = fluid.core.LoDTensor()
tensor.set(np.float32([[1], [2], [3]]), fluid.CPUPlace())
tensor.set_recursive_sequence_lengths([[2, 1]])
print(tensor.lod(), tensor.shape(), np.array(tensor).ravel())  # [[0, 2, 3]] [3, 1] [1. 2. 3.]

# %% fluid.LoDTensorArray
tensor = fluid.create_lod_tensor(np.float32([[1], [2]]), [[2]], fluid.CPUPlace())
array = fluid.core.LoDTensorArray()
array.append(tensor)
print(len(array), np.array(array[0]).ravel())  # 1 [1. 2.]

# %% fluid.create_lod_tensor
tensor = fluid.create_lod_tensor(np.float32([[1], [2], [3]]), [[2, 1]], fluid.CPUPlace())
words = fluid.create_lod_tensor([[1, 2], [3]], [[2, 1]], fluid.CPUPlace())  # lists of ids
print(tensor.recursive_sequence_lengths(), np.array(words).tolist())  # [[2, 1]] [[1], [2], [3]]

# %% fluid.create_random_int_lodtensor
tensor = fluid.create_random_int_lodtensor([[2, 3]], [1], fluid.CPUPlace(), low=0, high=9)
print(tensor.shape(), tensor.recursive_sequence_lengths())  # [5, 1] [[2, 3]]

# %% fluid.framework.name_scope
with fluid.name_scope("block"):
    x = fluid.data("x", [None, 2], "float32")
    y = fluid.layers.relu(x)
print(fluid.default_main_program().global_block().ops[0].attr("op_namescope"))  # /block/

# %% fluid.framework.device_guard
with fluid.device_guard("cpu"):
    x = fluid.layers.ones([1], "float32")
print(fluid.default_main_program().global_block().ops[0].attr("op_device"))  # cpu

# %% fluid.framework.get_flags fluid.framework.set_flags
fluid.set_flags({"FLAGS_check_nan_inf": True})
print(fluid.get_flags("FLAGS_check_nan_inf"))  # {'FLAGS_check_nan_inf': True}
fluid.set_flags({"FLAGS_check_nan_inf": False})

# %% fluid.framework.require_version
fluid.require_version("1.6.0", "1.8.9")
print("this version will do")  # this version will do

# %% fluid.framework.load_op_library
with open("double_op.py", "w") as file:
    file.write(
        "from jfluid.ops.registry import op\n\n"
        "@op('double', ins=('X',), outs=('Out',))\n"
        "def double(x):\n    return 2 * x\n"
    )
fluid.load_op_library("double_op.py")
data = fluid.data("data", [2], "float32")
doubled = fluid.default_main_program().global_block().create_var(name="doubled", dtype="float32", shape=[2])
fluid.default_main_program().global_block().append_op("double", inputs={"X": data}, outputs={"Out": doubled})
print(fluid.Executor(fluid.CPUPlace()).run(feed={"data": np.ones(2, "float32")}, fetch_list=[doubled])[0])  # [2. 2.]

# %% fluid.memory_optimize fluid.release_memory
x, y = linear()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # memory is XLA's: both do nothing, and say so
    fluid.memory_optimize(fluid.default_main_program())
    fluid.release_memory(fluid.default_main_program())
print(len(fluid.default_main_program().global_block().ops))  # 1

# %% fluid.unique_name.generate fluid.unique_name.guard fluid.unique_name.switch
with fluid.unique_name.guard():
    print(fluid.unique_name.generate("fc"), fluid.unique_name.generate("fc"))  # fc_0 fc_1
before = fluid.unique_name.switch()
print(fluid.unique_name.generate("fc"))  # fc_0
fluid.unique_name.switch(before)

# %% fluid.io.save_inference_model fluid.io.load_inference_model
x, y = linear()
exe.run(fluid.default_startup_program())
fluid.io.save_inference_model("model", ["x"], [y], exe)
program, feeds, fetches = fluid.io.load_inference_model("model", exe)
print(feeds, exe.run(program, feed={"x": np.float32([[1, 2]])}, fetch_list=fetches)[0])  # ['x'] [[1.5]]

# %% fluid.io.save_params fluid.io.load_params
x, y = linear()
exe.run(fluid.default_startup_program())
fluid.io.save_params(exe, "params")
fluid.global_scope().find_var("w").get_tensor().set(np.zeros([2, 1], "float32"), fluid.CPUPlace())
fluid.io.load_params(exe, "params")
print(np.array(fluid.global_scope().find_var("w").get_tensor()).ravel())  # [0.5 0.5]

# %% fluid.io.save_persistables fluid.io.load_persistables
x, y = linear()
exe.run(fluid.default_startup_program())
fluid.io.save_persistables(exe, "persistables", filename="all")
fluid.io.load_persistables(exe, "persistables", filename="all")
print(np.array(fluid.global_scope().find_var("w").get_tensor()).ravel())  # [0.5 0.5]

# %% fluid.io.save_vars fluid.io.load_vars
x, y = linear()
exe.run(fluid.default_startup_program())
w = fluid.default_main_program().global_block().var("w")
fluid.io.save_vars(exe, "vars", vars=[w])
fluid.io.load_vars(exe, "vars", vars=[w])
print(np.array(fluid.global_scope().find_var("w").get_tensor()).ravel())  # [0.5 0.5]

# %% fluid.io.save fluid.io.load
x, y = linear()
exe.run(fluid.default_startup_program())
fluid.save(fluid.default_main_program(), "saved/model")
fluid.load(fluid.default_main_program(), "saved/model", exe)
print(np.array(fluid.global_scope().find_var("w").get_tensor()).ravel())  # [0.5 0.5]

# %% fluid.io.load_program_state fluid.io.set_program_state
x, y = linear()
exe.run(fluid.default_startup_program())
fluid.save(fluid.default_main_program(), "saved/model")
state = fluid.load_program_state("saved/model")
state["w"] = state["w"] * 2
fluid.set_program_state(fluid.default_main_program(), state)
print(np.array(fluid.global_scope().find_var("w").get_tensor()).ravel())  # [1. 1.]

# %% fluid.io.get_program_parameter fluid.io.get_program_persistable_vars
x, y = linear()
program = fluid.default_main_program()
print([v.name for v in fluid.io.get_program_parameter(program)])  # ['w']
print([v.name for v in fluid.io.get_program_persistable_vars(program)])  # ['w']

# %% fluid.DataFeeder
x = fluid.data("x", [None, 2], "float32")
words = fluid.data("words", [None, 1], "int64", lod_level=1)
feeder = fluid.DataFeeder(feed_list=[x, words], place=fluid.CPUPlace())
feed = feeder.feed([([1.0, 2.0], [7, 8]), ([3.0, 4.0], [9])])  # two records
print(np.array(feed["x"]).shape, feed["words"].recursive_sequence_lengths())  # (2, 2) [[2, 1]]

# %% fluid.io.DataLoader
x = fluid.data("x", [None, 2], "float32")
y = fluid.layers.reduce_sum(x)
loader = fluid.io.DataLoader.from_generator(feed_list=[x], capacity=4)
loader.set_batch_generator(lambda: ([np.full([2, 2], i, "float32")] for i in range(3)), places=fluid.cpu_places(1))
print([float(exe.run(feed=feed, fetch_list=[y])[0][0]) for feed in loader()])  # [0.0, 4.0, 8.0]

# %% fluid.io.PyReader
x = fluid.data("x", [None, 2], "float32")
y = fluid.layers.reduce_sum(x)
reader = fluid.io.PyReader(feed_list=[x], capacity=4, iterable=True)
reader.decorate_batch_generator(lambda: ([np.full([2, 2], i, "float32")] for i in range(3)), places=fluid.cpu_places(1))
print([float(exe.run(feed=feed, fetch_list=[y])[0][0]) for feed in reader()])  # [0.0, 4.0, 8.0]

# %% fluid.layers.py_reader fluid.layers.read_file fluid.layers.double_buffer
reader = fluid.layers.py_reader(capacity=4, shapes=[[-1, 2]], dtypes=["float32"])
reader = fluid.layers.double_buffer(reader)
x = fluid.layers.read_file(reader)
y = fluid.layers.reduce_sum(x)
reader.decorate_tensor_provider(lambda: ([np.full([2, 2], i, "float32")] for i in range(2)))
reader.start()
print([float(exe.run(fetch_list=[y])[0][0]) for _ in range(2)])  # [0.0, 4.0]
reader.reset()

# %% fluid.layers.create_py_reader_by_data
x = fluid.data("x", [None, 2], "float32")
reader = fluid.layers.create_py_reader_by_data(capacity=4, feed_list=[x])
y = fluid.layers.reduce_sum(fluid.layers.read_file(reader))
reader.decorate_tensor_provider(lambda: ([np.full([2, 2], i, "float32")] for i in range(2)))
reader.start()
print([float(exe.run(fetch_list=[y])[0][0]) for _ in range(2)])  # [0.0, 4.0]
reader.reset()

# %% fluid.batch
reader = fluid.io.batch(lambda: iter(range(5)), batch_size=2, drop_last=False)
print(list(reader()))  # [[0, 1], [2, 3], [4]]

# %% fluid.io.buffered
reader = fluid.io.buffered(lambda: iter(range(3)), size=2)  # a thread reads ahead
print(list(reader()))  # [0, 1, 2]

# %% fluid.io.cache
reader = fluid.io.cache(lambda: iter(range(3)))  # reads once, then from memory
print(list(reader()), list(reader()))  # [0, 1, 2] [0, 1, 2]

# %% fluid.io.chain
reader = fluid.io.chain(lambda: iter([1, 2]), lambda: iter([3]))
print(list(reader()))  # [1, 2, 3]

# %% fluid.io.compose
reader = fluid.io.compose(lambda: iter([1, 2]), lambda: iter(["a", "b"]))
print(list(reader()))  # [(1, 'a'), (2, 'b')]

# %% fluid.io.ComposeNotAligned
reader = fluid.io.compose(lambda: iter([1, 2]), lambda: iter(["a"]))
try:
    list(reader())
except fluid.io.ComposeNotAligned:
    print("the readers have different lengths")  # the readers have different lengths

# %% fluid.io.firstn
reader = fluid.io.firstn(lambda: iter(range(100)), 3)
print(list(reader()))  # [0, 1, 2]

# %% fluid.io.map_readers
reader = fluid.io.map_readers(lambda a, b: a + b, lambda: iter([1, 2]), lambda: iter([10, 20]))
print(list(reader()))  # [11, 22]


# %% fluid.io.multiprocess_reader
def numbers():
    """Records of one process."""
    return iter([1, 2])


reader = fluid.io.multiprocess_reader([numbers, numbers])  # a process each
print(sorted(reader()))  # [1, 1, 2, 2]

# %% fluid.io.shuffle
reader = fluid.io.shuffle(lambda: iter(range(5)), buf_size=5)
print(sorted(reader()))  # [0, 1, 2, 3, 4]

# %% fluid.io.xmap_readers
reader = fluid.io.xmap_readers(lambda x: x * 10, lambda: iter(range(3)), process_num=2, buffer_size=4, order=True)
print(list(reader()))  # [0, 10, 20]

# %% fluid.io.default_collate_fn
batch = fluid.reader.default_collate_fn([(np.float32([1, 2]), 0), (np.float32([3, 4]), 1)])
print([np.asarray(part).tolist() for part in batch])  # [[[1.0, 2.0], [3.0, 4.0]], [0, 1]]

# %% fluid.profiler.profiler
x, y = linear()
exe.run(fluid.default_startup_program())
with fluid.profiler.profiler("CPU", sorted_key="total", profile_path="profile"):  # prints a table
    exe.run(feed={"x": np.float32([[1, 2]])}, fetch_list=[y])

# %% fluid.profiler.start_profiler fluid.profiler.stop_profiler fluid.profiler.reset_profiler
x, y = linear()
exe.run(fluid.default_startup_program())
fluid.profiler.start_profiler("CPU")
exe.run(feed={"x": np.float32([[1, 2]])}, fetch_list=[y])
fluid.profiler.reset_profiler()  # without the first step
exe.run(feed={"x": np.float32([[1, 2]])}, fetch_list=[y])
fluid.profiler.stop_profiler(sorted_key="total", profile_path="profile")

# %% fluid.profiler.cuda_profiler
if fluid.core.get_cuda_device_count():
    with fluid.profiler.cuda_profiler("profile"):
        linear()  # and the steps to profile
print("a CUDA profiler needs a GPU")  # a CUDA profiler needs a GPU

# %% fluid.debugger.draw_block_graphviz
x, y = linear()
fluid.debugger.draw_block_graphviz(fluid.default_main_program().global_block(), path="program.dot")
with open("program.dot") as file:
    print(file.read().split()[0])  # digraph

# %% fluid.debugger.pprint_program_codes
x, y = linear()
print("mul" in str(fluid.debugger.pprint_program_codes(fluid.default_main_program())))  # True

# %% fluid.debugger.pprint_block_codes
x, y = linear()
print("mul" in str(fluid.debugger.pprint_block_codes(fluid.default_main_program().global_block())))  # True

# %% fluid.debugger.repr_data_type
print(fluid.debugger.repr_data_type(fluid.core.VarDesc.VarType.INT64))  # int64

# %% fluid.debugger.repr_var fluid.debugger.repr_op
x, y = linear()
block = fluid.default_main_program().global_block()
print(fluid.debugger.repr_var(block.var("w")))  # w: FP32[2, 1]
print("mul" in fluid.debugger.repr_op(block.ops[0]))  # True

# %% fluid.debugger.repr_attr
x, y = linear()
described = framework_pb2.ProgramDesc.FromString(fluid.default_main_program().desc.serialize_to_string())
attribute = next(a for a in described.blocks[0].ops[0].attrs if a.name == "x_num_col_dims")
print(fluid.debugger.repr_attr(attribute)[0])  # x_num_col_dims=1

# %% fluid.debugger.repr_tensor fluid.debugger.repr_lodtensor fluid.debugger.repr_selected_rows
# %% fluid.debugger.repr_tensor_array
x, y = linear()
described = framework_pb2.ProgramDesc.FromString(fluid.default_main_program().desc.serialize_to_string())
variable = next(v for v in described.blocks[0].vars if v.name == "w")
print(fluid.debugger.repr_tensor(variable.type.lod_tensor.tensor))  # tensor(type=float32, shape=[2, 1])
print(fluid.debugger.repr_lodtensor(variable))  # Tensor w (tensor(type=float32, shape=[2, 1]))
print(fluid.debugger.repr_selected_rows(variable), fluid.debugger.repr_tensor_array(variable))  # None None

# %% fluid.debugger.prepare_fast_nan_inf_debug fluid.debugger.run_fast_nan_inf_debug
x = fluid.data("x", [None], "float32")
y = fluid.layers.log(x)
program = fluid.default_main_program()
fluid.debugger.prepare_fast_nan_inf_debug(program)
try:
    fluid.debugger.run_fast_nan_inf_debug(exe, program, feed={"x": np.float32([-1])}, fetch_list=[y], dump_core=False)
except Exception as error:
    print("log" in str(error))  # True

# %% fluid.learning_rate_decay
rate = fluid.learning_rate_decay.exponential_decay(0.1, decay_steps=1, decay_rate=0.5)
exe.run(fluid.default_startup_program())
print(exe.run(fetch_list=[rate])[0])  # [0.1]

# %% fluid.check_import_scipy
check_import_scipy("posix")  # Fluid explains a failing import of SciPy on Windows; here it does nothing
print("done")  # done
