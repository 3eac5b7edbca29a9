"""What is there and refuses to be used."""
import paddle.fluid as fluid

fluid.load_op_library("libops.so")  # expect: refused
fluid.optimizer.DGCMomentumOptimizer(0.1, 0.9, 0)  # expect: refused
fluid.optimizer.PipelineOptimizer(None)  # expect: refused
fluid.metrics.DetectionMAP(None, None, None)  # expect: refused
with fluid.profiler.cuda_profiler("nvprof.txt"):  # expect: refused
    pass
