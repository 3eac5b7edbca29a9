"""Settings of Fluid's C++ trainers, which run programs over datasets.

`Executor.train_from_dataset` does that here and takes its settings itself; these classes hold what scripts
give them.
"""

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from jfluid import errors

__all__ = ["DistMultiTrainer", "MultiTrainer", "PipelineTrainer", "TrainerDesc"]

# Lists, to which setters add; every other setting replaces the one before.
_LISTS = "dump_fields", "dump_param", "check_nan_var_names", "loss_names"
_VALUES = (
    "debug",
    "use_cvm",
    "no_cvm",
    "scale_datanorm",
    "dump_slot",
    "mpi_rank",
    "mpi_size",
    "dump_fields_path",
    "dump_file_num",
    "dump_converter",
    "thread_barrier",
)


class TrainerDesc:
    """Settings, as attributes of `proto_desc`; `_set_debug(True)` sets `proto_desc.debug`, and so on."""

    class_name = ""

    def __init__(self) -> None:
        lists: dict[str, Any] = {name: [] for name in _LISTS}
        self.proto_desc = SimpleNamespace(class_name=self.class_name, thread_num=os.cpu_count() or 1, **lists)
        self._program: Any = None
        self._device_worker: Any = None
        self._fleet_desc: Any = None
        self._infer = False

    def _set_thread(self, thread_num: int) -> None:
        self.proto_desc.thread_num = thread_num

    def _set_fetch_var_and_info(self, fetch_vars: Sequence[Any], fetch_info: Sequence[str], print_period: int) -> None:
        self.proto_desc.fetch_config = SimpleNamespace(
            fetch_var_names=[v.name for v in fetch_vars],
            fetch_var_str_format=list(fetch_info),
            print_period=print_period,
        )

    def _set_program(self, program: Any) -> None:
        self._program = program

    def _set_device_worker(self, device_worker: Any) -> None:
        self._device_worker = device_worker

    def _set_fleet_desc(self, fleet_desc: Any) -> None:
        self._fleet_desc = fleet_desc

    def _set_infer(self, infer: bool) -> None:
        self._infer = infer

    def __getattr__(self, name: str) -> Any:
        setting = name.removeprefix("_set_")
        if setting == name or setting not in (*_LISTS, *_VALUES):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if setting in _LISTS:
            return getattr(self.proto_desc, setting).extend
        return lambda value: setattr(self.proto_desc, setting, value)

    def _desc(self) -> NoReturn:
        """Raise UnsupportedError: only Fluid's C++ trainers read their settings as a message."""
        raise errors.UnsupportedError(
            f"{type(self).__name__}._desc: Fluid's C++ trainers are not here; "
            "Executor.train_from_dataset(program, dataset, thread=...) runs a program over a dataset"
        )

    _gen_trainer_desc = _desc


class MultiTrainer(TrainerDesc):
    """Trainer with several threads in one process."""

    class_name = "MultiTrainer"


class DistMultiTrainer(TrainerDesc):
    """Trainer with several threads and parameter servers."""

    class_name = "DistMultiTrainer"


class PipelineTrainer(TrainerDesc):
    """Trainer of pipeline sections."""

    class_name = "PipelineTrainer"
