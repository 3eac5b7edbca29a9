"""Fluid's inference interface: `fluid.core.{AnalysisConfig, create_paddle_predictor, PaddleTensor, ...}`.

    config = AnalysisConfig("model")                    # or AnalysisConfig("model/prog", "model/params")
    predictor = create_paddle_predictor(config)
    (out,) = predictor.run([PaddleTensor(images)])
    print(out.as_ndarray())

    predictor.get_input_tensor("x").copy_from_cpu(images)       # the same without PaddleTensors
    predictor.zero_copy_run()
    print(predictor.get_output_tensor(predictor.get_output_names()[0]).copy_to_cpu())

A model runs as `Executor.run` runs it. Each thread takes a `clone()`: clones have parameters and
compiled steps in common, inputs and outputs of their own.
"""

from jfluid.compat.inference.config import AnalysisConfig, NativeConfig
from jfluid.compat.inference.predictor import AnalysisPredictor, create_paddle_predictor
from jfluid.compat.inference.tensors import (
    PaddleBuf,
    PaddleDType,
    PaddlePlace,
    PaddleTensor,
    ZeroCopyTensor,
    paddle_dtype_size,
    paddle_tensor_to_bytes,
)

# Other names of Fluid's for the same.
InferAnalysisConfig, InferNativeConfig = AnalysisConfig, NativeConfig
PaddlePredictor = NativePaddlePredictor = AnalysisPredictor

__all__ = [
    "AnalysisConfig",
    "AnalysisPredictor",
    "InferAnalysisConfig",
    "InferNativeConfig",
    "NativeConfig",
    "NativePaddlePredictor",
    "PaddleBuf",
    "PaddleDType",
    "PaddlePlace",
    "PaddlePredictor",
    "PaddleTensor",
    "ZeroCopyTensor",
    "create_paddle_predictor",
    "paddle_dtype_size",
    "paddle_tensor_to_bytes",
]
