"""Devices, and settings of the environment without effect."""
import os

import paddle.fluid as fluid

os.environ["FLAGS_fraction_of_gpu_memory_to_use"] = "0.9"  # expect: no-effect
os.environ["FLAGS_eager_delete_tensor_gb"] = "0.0"  # expect: no-effect
os.environ.setdefault("MKL_NUM_THREADS", "1")  # expect: no-effect
os.environ["OMP_NUM_THREADS"] = "1"  # expect: no-effect
os.environ.update(KMP_AFFINITY="compact")  # expect: no-effect
os.environ.update({"FLAGS_cudnn_exhaustive_search": "1"})  # expect: no-effect
os.putenv("GLOG_v", "3")  # expect: no-effect
os.environ["FLAGS_unheard_of"] = "1"  # expect: no-effect
os.environ["CPU_NUM"] = "2"
fluid.set_flags({"FLAGS_use_mkldnn": True})  # expect: no-effect
use_gpu = True
place = fluid.CUDAPlace(0)  # expect: gpu-only
if use_gpu:
    place = fluid.CUDAPlace(1)  # expect: gpu-only
if fluid.is_compiled_with_cuda():
    place = fluid.CUDAPlace(0)


def train():
    places = fluid.cuda_places()  # expect: gpu-only
    return places


fluid.memory_optimize(fluid.default_main_program())  # expect: no-effect
image = fluid.data(name="image", shape=[None, 3, 8, 8], dtype="float32")
y = fluid.layers.conv2d(image, 3, 3, use_cudnn=False)  # expect: no-effect
