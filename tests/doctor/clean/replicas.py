import os

os.environ["CPU_NUM"] = "2"
import paddle.fluid as fluid

x = fluid.data(name="x", shape=[None, 4], dtype="float32")
loss = fluid.layers.mean(fluid.layers.fc(x, 2))
fluid.optimizer.SGD(0.1).minimize(loss)
build_strategy = fluid.BuildStrategy()
build_strategy.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
build_strategy.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.CoeffNumDevice
exec_strategy = fluid.ExecutionStrategy()
exec_strategy.num_threads = 4
exec_strategy.num_iteration_per_drop_scope = 10
compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
    loss_name=loss.name, build_strategy=build_strategy, exec_strategy=exec_strategy
)
