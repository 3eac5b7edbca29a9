"""Flags: settings by name, from the environment (`FLAGS_x=...`) or `fluid.set_flags`."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jfluid import environment, errors

__all__ = ["get_flags", "set_flags"]


# Groups of CPU kernels: each is a file `machine_code/<group>_kernels.py`.
CPU_KERNELS = ("convolution", "gru", "lstm", "product", "row")


def _kernel_groups(text: str) -> str:
    """Return the value of FLAGS_cpu_kernels: 1, 0 or the names of groups. Raises ValueError for unknown names."""
    if text in ("1", "true"):
        return "1"
    names = [] if text in ("", "0", "false") else [name.strip() for name in text.split(",")]
    without = [name[1:] for name in names if name.startswith("-")]
    if (without and len(without) < len(names)) or not set(without or names) <= set(CPU_KERNELS):
        raise ValueError(text)
    chosen = [name for name in CPU_KERNELS if (name not in without if without else name in names)]
    return "1" if len(chosen) == len(CPU_KERNELS) else ",".join(chosen) or "0"


class Flag(NamedTuple):
    """Definition of a flag.

    Attributes:
        default: the default, which determines the flag's type.
        meaning: the description.
        parse: returns the value of a text in lower case; raises ValueError.
        expected: the values that `parse` takes.
    """

    default: Any
    meaning: str
    parse: Callable[[str], Any] | None = None
    expected: str = ""


EFFECTIVE = {
    "FLAGS_check_nan_inf": Flag(False, "hold every floating output of every operator against NaN and infinity"),
    "FLAGS_compilation_cache_dir": Flag(
        os.path.join("~", ".cache", "jfluid", "xla"),
        "where compiled programs are kept; empty: each process compiles anew",
    ),
    "FLAGS_compilation_cache_max_bytes": Flag(
        4 << 30, "bytes of files there; what was written and read before all else is deleted first"
    ),
    "FLAGS_communicator_is_sgd_optimizer": Flag(True, "gradients of several steps are added up, else averaged"),
    "FLAGS_communicator_max_merge_var_num": Flag(20, "the number of steps with gradients sent together"),
    "FLAGS_communicator_min_send_grad_num_before_recv": Flag(20, "gradients before parameters are received again"),
    "FLAGS_communicator_prefetch_depth": Flag(1, "the number of dataset batches with table rows pulled ahead"),
    "FLAGS_communicator_send_queue_size": Flag(20, "the number of steps with gradients in the send queue"),
    "FLAGS_communicator_send_wait_times": Flag(5, "the waiting time for more gradients, in hundredths of a second"),
    "FLAGS_compiled_max_bytes": Flag(
        0,
        "approximate bytes of all compiled steps and operators of imperative mode; beyond it the "
        "least recently used are dropped, and compiled again at their next use. 0: a "
        "thirty-second of the memory, 512 MiB at least",
    ),
    "FLAGS_cpu_kernels": Flag(
        "1",
        "steps on CPUs that are compiled from then on call jfluid's CPU kernels where kernels are faster; 0: XLA's "
        "code alone; lstm,gru: the kernels of these groups; -lstm,-gru: the kernels of all other groups",
        _kernel_groups,
        f"1, 0, names of groups (lstm,gru) or groups to leave out (-lstm,-gru) of {', '.join(CPU_KERNELS)}",
    ),
    "FLAGS_cpu_replicas_joined": Flag(
        True,
        "replicas on the CPU, in steps compiled from then on, run as one XLA program on all "
        "processors if the numbers stay the same; otherwise each replica runs on a separate "
        "device",
    ),
    "FLAGS_cudnn_deterministic": Flag(
        False,
        "steps compiled for GPUs from then on give the same bits each time (XLA's "
        "xla_gpu_deterministic_ops); steps on CPUs wait for their compilation, and then give the same bits, too",
    ),
    "FLAGS_dataset_max_bytes": Flag(
        0, "bytes of an InMemoryDataset's records, copies while shuffling included; 0: three quarters of the memory"
    ),
    "FLAGS_dynamic_shapes": Flag(
        True,
        "programs with feeds that change shape are compiled for a few padded sizes, with masked "
        "padding; False: for each shape",
    ),
    "FLAGS_global_shuffle_peer_bytes": Flag(
        0, "the limit for bytes from one trainer to the next in a shuffle; 0: the machine's memory"
    ),
    "FLAGS_interpret_first_steps": Flag(
        True,
        "steps on one CPU device, and of imperative mode, are interpreted with NumPy until they are compiled: the "
        "first "
        "loss comes at once, and losses may differ in their last digits from run to run. False: each step waits for "
        "its compilation. Steps always wait with FLAGS_cudnn_deterministic, in jobs of several processes, in "
        "synchronous jobs with servers, in replicas, in startup programs, with arguments above 256 MiB, and with "
        "intermediate results above 512 MiB",
    ),
    "FLAGS_record_dir": Flag(
        "",
        "the folder of the record (jfluid.log, progress) of a script without jfluid-launch; empty: no record",
    ),
    "FLAGS_rpc_deadline": Flag(
        180000, "the time that a trainer waits for parameter servers to listen, in milliseconds"
    ),
    "FLAGS_selected_gpus": Flag("", "the default result of fluid.cuda_places()"),
    "FLAGS_shape_buckets": Flag(
        "",
        'sizes that batches are padded to, as JSON: {"src_ids": {"1": [32, 64]}}; '
        "fluid.shape_buckets and the job file's shape_buckets set it",
    ),
}
# Settings of Fluid's memory allocator, garbage collector and kernels (XLA has its own), and of its
# communicator's threads (one thread sends and receives). These are kept and returned, and change
# nothing.
NO_EFFECT: dict[str, Any] = {
    "FLAGS_allocator_strategy": "auto_growth",
    "FLAGS_benchmark": False,
    "FLAGS_communicator_fake_rpc": False,
    "FLAGS_communicator_independent_recv_thread": True,
    "FLAGS_communicator_merge_sparse_grad": True,
    "FLAGS_communicator_thread_pool_size": 5,
    "FLAGS_rpc_retry_times": 3,
    "FLAGS_conv_workspace_size_limit": 512,
    "FLAGS_cpu_deterministic": False,
    "FLAGS_cudnn_batchnorm_spatial_persistent": False,
    "FLAGS_cudnn_exhaustive_search": False,
    "FLAGS_eager_delete_scope": True,
    "FLAGS_eager_delete_tensor_gb": 0.0,
    "FLAGS_enable_parallel_graph": False,
    "FLAGS_fast_eager_deletion_mode": True,
    "FLAGS_fraction_of_cpu_memory_to_use": 1.0,
    "FLAGS_fraction_of_gpu_memory_to_use": 0.92,
    "FLAGS_fuse_parameter_groups_size": 3,
    "FLAGS_fuse_parameter_memory_size": -1.0,
    "FLAGS_initial_cpu_memory_in_mb": 500,
    "FLAGS_initial_gpu_memory_in_mb": 0,
    "FLAGS_init_allocated_mem": False,
    "FLAGS_max_inplace_grad_add": 0,
    "FLAGS_memory_fraction_of_eager_deletion": 1.0,
    "FLAGS_paddle_num_threads": 1,
    "FLAGS_reader_queue_speed_test_mode": False,
    "FLAGS_reallocate_gpu_memory_in_mb": 0,
    "FLAGS_sync_nccl_allreduce": True,
    "FLAGS_use_mkldnn": False,
    "FLAGS_use_pinned_memory": True,
}
_values: dict[str, Any] = {}
# How often flags were set in this process. Steps compare it: to look into the environment takes microseconds.
change_count = 0


def _parse(name: str, text: Any) -> Any:
    """Return a value that is given as text, in the type of the flag's default."""
    default = _known(name)
    flag = EFFECTIVE.get(name)
    try:
        if flag and flag.parse:
            return flag.parse(str(text).lower())
        if isinstance(default, bool):
            return {"1": True, "true": True, "0": False, "false": False, "": False}[str(text).lower()]
        return type(default)(text)
    except (KeyError, ValueError):
        expected = flag.expected if flag and flag.parse else type(default).__name__
        raise errors.AttributeTypeError(f"{name}: expected {expected}, found {text!r}") from None


def _known(name: str) -> Any:
    if name in EFFECTIVE:
        return EFFECTIVE[name].default
    if name in NO_EFFECT:
        return NO_EFFECT[name]
    raise errors.ProgramError(f"no flag {name}" + errors.close_to(name, [*EFFECTIVE, *NO_EFFECT]))


def given(name: str) -> Any:
    """Return the value of a flag that was set, or that the environment sets; None for a default."""
    if name in _values:
        return _values[name]
    _known(name)
    text = environment.text(name)
    return None if text is None else _parse(name, text)


def get(name: str) -> Any:
    """Return the value of a flag: the set value, else the environment's, else the default."""
    value = given(name)
    return _known(name) if value is None else value


def cpu_kernels() -> frozenset[str]:
    """Return the groups of CPU kernels that FLAGS_cpu_kernels allows."""
    value = get("FLAGS_cpu_kernels")
    return frozenset(CPU_KERNELS if value == "1" else value.split(","))


def get_flags(flags: str | Iterable[str]) -> dict[str, Any]:
    """Return the values of the named flags, by name. Raises ProgramError for an unknown one."""
    return {name: get(name) for name in ([flags] if isinstance(flags, str) else flags)}


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags by name.

    Raises ProgramError for an unknown one, AttributeTypeError for a wrong type.
    """
    if not isinstance(flags, Mapping):
        raise TypeError(f"set_flags: expected a dict, found {type(flags).__name__}")
    global change_count
    _values.update({name: _parse(name, value) for name, value in flags.items()})
    change_count += 1
