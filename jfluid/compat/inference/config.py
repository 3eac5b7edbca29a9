"""Configuration of a predictor."""

import enum
from typing import Any

from jfluid.errors import UnsupportedError


class NativeConfig:
    """The older form of AnalysisConfig: plain attributes.

    Attributes:
        model_dir: the model's folder; or `prog_file` and `param_file`, which hold the program and
            all parameters.
        use_gpu, device: whether it runs on a GPU, and its number.
        specify_input_name: inputs of `run` are found by their names, not by their order.
        allow: types of the model's operators that may act (see AnalysisConfig.allow_operators).
        fraction_of_gpu_memory, cpu_math_library_num_threads: no effect: XLA manages memory and
            threads.
    """

    def __init__(self) -> None:
        self.model_dir = self.prog_file = self.param_file = ""
        self.use_gpu, self.device = False, 0
        self.specify_input_name = False
        self.allow: tuple[str, ...] = ()
        self.fraction_of_gpu_memory = 0.0
        self._threads = 1

    def cpu_math_library_num_threads(self) -> int:
        return self._threads

    def set_cpu_math_library_num_threads(self, number: int) -> None:
        """No effect: XLA uses the CPUs that the process may use."""
        self._threads = number


class Precision(enum.IntEnum):
    """Precisions of inference engines."""

    Float32 = 0
    Int8 = 1
    Half = 2


class PassBuilder:
    """The passes over a program that Fluid runs before inference: none, XLA optimises."""

    def all_passes(self) -> list[str]:
        return []

    def _has_no_effect(self, *args: Any) -> None:
        """No effect: there are no passes; XLA optimises the model."""

    append_pass = insert_pass = delete_pass = turn_on_debug = set_passes = _has_no_effect


class AnalysisConfig:
    """Configuration of a predictor: model, device, options.

    Args:
        model: the model's folder; with `params` the file with its program; or a config to copy.
        params: the file with all its parameters.
    """

    Precision = Precision

    def __init__(self, model: "str | AnalysisConfig" = "", params: str = ""):
        self._dir = self._prog = self._params = ""
        self._buffers: tuple[bytes, bytes] | None = None
        self._gpu: int | None = None
        self._allow: tuple[str, ...] = ()
        self._switches = {"ir_optim": True, "feed_fetch": True, "names": False, "log": True}
        self._memory_mb, self._threads = 100, 1
        if isinstance(model, AnalysisConfig):
            vars(self).update(vars(model), _switches=dict(model._switches))
        else:
            self.set_model(model, params)

    def set_model(self, model: str, params: str = "") -> None:
        """Return the model's folder; or the file with its program, and that with its parameters."""
        self._dir, self._prog, self._params = ("", model, params) if params else (model, "", "")

    def set_prog_file(self, path: str) -> None:
        self._prog = path

    def set_params_file(self, path: str) -> None:
        self._params = path

    def set_model_buffer(
        self,
        prog_buffer: bytes,
        prog_buffer_size: int,
        params_buffer: bytes,
        params_buffer_size: int,
    ) -> None:
        """Set the model as bytes: the program, and the file with all parameters."""
        self._buffers = (prog_buffer[:prog_buffer_size], params_buffer[:params_buffer_size])

    def allow_operators(self, *types: str) -> None:
        """Let operators of these types act when the model runs: on files, networks, processes, Python or the terminal.

        A predictor refuses others of that kind: a model may come from anybody.
        """
        self._allow = types

    def allowed_operators(self) -> tuple[str, ...]:
        """Return the operators given to `allow_operators`."""
        return self._allow

    def model_dir(self) -> str:
        return self._dir

    def prog_file(self) -> str:
        return self._prog

    def params_file(self) -> str:
        return self._params

    def model_from_memory(self) -> bool:
        return self._buffers is not None

    def buffers(self) -> tuple[bytes, bytes] | None:
        """Return the bytes given to `set_model_buffer`."""
        return self._buffers

    def enable_use_gpu(self, memory_pool_init_size_mb: int, device_id: int = 0) -> None:
        """Run on this GPU. The size of the memory pool has no effect: JAX manages memory."""
        self._memory_mb, self._gpu = memory_pool_init_size_mb, device_id

    def disable_gpu(self) -> None:
        """Run on the CPU, as without `enable_use_gpu`."""
        self._gpu = None

    def use_gpu(self) -> bool:
        return self._gpu is not None

    def gpu_device_id(self) -> int:
        return self._gpu or 0

    def memory_pool_init_size_mb(self) -> int:
        return self._memory_mb

    def fraction_of_gpu_memory_for_pool(self) -> float:
        return 0.0

    def switch_specify_input_names(self, x: bool = True) -> None:
        """Find inputs of `run` by their names, not by their order."""
        self._switches["names"] = bool(x)

    def specify_input_name(self) -> bool:
        return self._switches["names"]

    def switch_use_feed_fetch_ops(self, x: int = True) -> None:
        """No effect: `run` and `zero_copy_run` both work either way."""
        self._switches["feed_fetch"] = bool(x)

    def use_feed_fetch_ops_enabled(self) -> bool:
        return self._switches["feed_fetch"]

    def switch_ir_optim(self, x: int = True) -> None:
        """No effect: XLA optimises the model."""
        self._switches["ir_optim"] = bool(x)

    def ir_optim(self) -> bool:
        return self._switches["ir_optim"]

    def disable_glog_info(self) -> None:
        """No effect: there is no such log."""
        self._switches["log"] = False

    def glog_info_disabled(self) -> bool:
        return not self._switches["log"]

    def set_cpu_math_library_num_threads(self, number: int) -> None:
        """No effect: XLA uses the CPUs that the process may use."""
        self._threads = number

    def cpu_math_library_num_threads(self) -> int:
        return self._threads

    def _has_no_effect(self, *args: Any, **kwargs: Any) -> None:
        """No effect: it is a setting of Fluid's own kernels and passes; XLA compiles the model."""

    enable_memory_optim = enable_mkldnn = set_mkldnn_op = set_mkldnn_cache_capacity = _has_no_effect
    delete_pass = set_optim_cache_dir = switch_ir_debug = enable_profile = _has_no_effect

    def mkldnn_enabled(self) -> bool:
        return False

    def tensorrt_engine_enabled(self) -> bool:
        return False

    def lite_engine_enabled(self) -> bool:
        return False

    def _refuse(self, *args: Any, **kwargs: Any) -> None:
        """Raise UnsupportedError: XLA runs models in the precision of the saved parameters."""
        raise UnsupportedError(
            "AnalysisConfig: TensorRT, Lite and quantization are not in this "
            "release: models run by XLA, in the precision that they were saved in; leave the call out"
        )

    enable_tensorrt_engine = set_trt_dynamic_shape_info = enable_lite_engine = _refuse
    enable_quantizer = quantizer_config = _refuse

    def pass_builder(self) -> PassBuilder:
        """Return the passes of a model: an empty list."""
        return PassBuilder()

    def to_native_config(self) -> NativeConfig:
        """Return the same as a NativeConfig."""
        native = NativeConfig()
        native.model_dir, native.prog_file, native.param_file = self._dir, self._prog, self._params
        native.use_gpu, native.device = self.use_gpu(), self.gpu_device_id()
        native.specify_input_name, native.allow = self.specify_input_name(), self._allow
        return native
