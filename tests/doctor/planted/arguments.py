"""Arguments that do not exist, are too many or too few."""
import paddle.fluid as fluid

x = fluid.data(name="x", shape=[None, 8], dtype="float32")
y = fluid.layers.fc(x, size=2, activation="relu")  # expect: unknown-argument
y = fluid.layers.fc(input=x)  # expect: missing-argument
y = fluid.layers.dropout(x, 0.5, True, 1, "a", "upscale_in_train", 3)  # expect: too-many-arguments
y = fluid.layers.conv2d(
    x,
    num_filters=3,
    filter_size=3,
    pad=1,  # expect: unknown-argument
)
y = fluid.layers.embedding(x, size=[10, 4], sparse=True)  # expect: unknown-argument
opt = fluid.optimizer.Adam(lr=0.001)  # expect: unknown-argument
opt = fluid.optimizer.SGD()  # expect: missing-argument
exe = fluid.Executor(place=fluid.CPUPlace(), threads=2)  # expect: unknown-argument
exe.run(feeds={"x": 1}, fetch_list=[y])  # expect: unknown-argument
build = fluid.BuildStrategy()
build.fuse_all_reduce_op = True  # expect: unknown-argument
execution = fluid.ExecutionStrategy()
execution.num_thread = 4  # expect: unknown-argument
config = fluid.DistributeTranspilerConfig()
config.slice_vars_up = False  # expect: unknown-argument
fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss="y")  # expect: unknown-argument
w = fluid.ParamAttr(name="w", init=None)  # expect: unknown-argument
fluid.io.save_inference_model("m", ["x"], [y], exe, params_file="p")  # expect: unknown-argument
fluid.layers.reduce_mean(x, axis=0)  # expect: unknown-argument
