"""`fluid.incubate.fleet.utils.fleet_util`: metrics over all trainers, and tools for programs."""

import logging
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf import text_format

from jfluid import debugger, errors, record
from jfluid.fleet.parameter_server.fleet import fleet
from jfluid.ir import framework_pb2
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.places import CPUPlace
from jfluid.record.phases import PHASES
from jfluid.scope import Scope, global_scope

__all__ = ["FleetUtil"]

_logger = logging.getLogger(__name__)
_logger.setLevel(logging.INFO)
_PSLIB = (
    "PSLib, of which this method reads or writes tables, was never published: "
    "fleet.save_persistables and fleet.save_inference_model save models"
)
_LARGEST_SPAN = 0.01  # of predicted rates that form one group
_LARGEST_RELATIVE_ERROR = 0.05  # of a group's predicted rate


class FleetUtil:
    """Metrics over all trainers of a job, and tools for programs.

    Methods that read or write PSLib's tables raise UnsupportedError.

    Args:
        mode: "transpiler". "pslib", Fluid's default, raises UnsupportedError.
    """

    def __init__(self, mode: str = "pslib"):
        if mode == "pslib":
            raise errors.UnsupportedError(
                "FleetUtil, mode='pslib': PSLib was never published; FleetUtil(mode='transpiler') works"
            )
        if mode != "transpiler":
            raise errors.ProgramError(f'Please choose one mode from ["pslib", "transpiler"], found {mode!r}')

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS_OF_PSLIB:
            raise errors.UnsupportedError(f"FleetUtil.{name}: {_PSLIB}")
        if name == "check_vars_and_dump":
            raise errors.UnsupportedError(
                "FleetUtil.check_vars_and_dump is not in this release: run the program with Executor.run and a "
                "fetch_list, and write the values with np.save"
            )
        raise AttributeError(name)

    def rank0_print(self, s: str) -> None:
        """Print a text in trainer 0."""
        if fleet.worker_index() == 0:
            print(s, flush=True)

    def rank0_info(self, s: str) -> None:
        """Log a text in trainer 0."""
        if fleet.worker_index() == 0:
            _logger.info(s)

    def rank0_error(self, s: str) -> None:
        """Log a text as an error in trainer 0."""
        if fleet.worker_index() == 0:
            _logger.error(s)

    # ---- metrics ----

    def set_zero(self, var_name: str, scope: Scope | None = None, place: Any = None, param_type: str = "int64") -> None:
        """Set the elements of a variable to zeros of a type."""
        tensor = _scope(scope).var(var_name).get_tensor()
        tensor.set(np.zeros(tensor.shape(), param_type), place or CPUPlace())

    def get_global_auc(
        self, scope: Scope | None = None, stat_pos: str = "_generated_var_2", stat_neg: str = "_generated_var_3"
    ) -> float | None:
        """Return the AUC of the examples of all trainers, and record it as "global AUC". All trainers must call it.

        Returns None if this scope has no such variables.

        Args:
            scope: the scope of the counters; the global scope when None.
            stat_pos: the counter of positive examples by bucket, an output of `layers.auc`.
            stat_neg: the counter of negative examples by bucket.

        Raises UnsupportedError where trainers cannot reach each other (see `GeneralRoleMaker`).
        """
        scope = _scope(scope)
        if scope.find_var(stat_pos) is None or scope.find_var(stat_neg) is None:
            self.rank0_print("not found auc bucket")
            return None
        positive, negative = (_total(scope, name)[0][::-1].astype(np.float64) for name in (stat_pos, stat_neg))
        before = np.concatenate([[0.0], np.cumsum(positive)])
        area = float((negative * (before[:-1] + before[1:])).sum() / 2)
        pairs = float(positive.sum() * negative.sum())
        auc = area / pairs if pairs else 0.5
        record.log(PHASES.steps, **{"global AUC": auc})
        return auc

    def print_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
        print_prefix: str = "",
    ) -> None:
        """Print the result of `get_global_auc` in trainer 0."""
        self.rank0_print(f"{print_prefix} global auc = {self.get_global_auc(scope, stat_pos, stat_neg)}")

    def get_global_metrics(
        self,
        scope: Scope | None = None,
        stat_pos_name: str = "_generated_var_2",
        stat_neg_name: str = "_generated_var_3",
        sqrerr_name: str = "sqrerr",
        abserr_name: str = "abserr",
        prob_name: str = "prob",
        q_name: str = "q",
        pos_ins_num_name: str = "pos",
        total_ins_num_name: str = "total",
    ) -> list[Any]:
        """Return metrics of the examples of all trainers, and record the metrics. All trainers must call it.

        The names are outputs of `layers.auc` and `contrib.layers.ctr_metric_bundle`.

        Returns AUC, bucket error, mean absolute error, root of the mean squared error, click rate, predicted click
        rate, the ratio of both rates, mean q and the number of examples; nine times None if the scope lacks a variable.
        """
        scope = _scope(scope)
        sums = sqrerr_name, abserr_name, prob_name, q_name, pos_ins_num_name, total_ins_num_name
        for name in (stat_pos_name, stat_neg_name, *sums):
            if scope.find_var(name) is None:
                self.rank0_print(f"not found {name}")
                return [None] * 9
        auc = self.get_global_auc(scope, stat_pos_name, stat_neg_name)
        positive, negative = (_total(scope, name)[0] for name in (stat_pos_name, stat_neg_name))
        squares, absolute, predicted, q, clicks, number = (float(_total(scope, name).reshape(-1)[0]) for name in sums)
        rate = predicted / number
        found = {
            "bucket error": _bucket_error(positive, negative),
            "mean absolute error": absolute / number,
            "root mean squared error": math.sqrt(squares / number),
            "click rate": clicks / number,
            "predicted click rate": rate,
            "COPC": clicks / number / rate if rate > 1e-6 else 0.0,
            "mean q": q / number,
            "examples": int(number),
        }
        record.log(PHASES.steps, **{f"global {name}": value for name, value in found.items()})
        return [auc, *found.values()]

    def print_global_metrics(
        self,
        scope: Scope | None = None,
        stat_pos_name: str = "_generated_var_2",
        stat_neg_name: str = "_generated_var_3",
        sqrerr_name: str = "sqrerr",
        abserr_name: str = "abserr",
        prob_name: str = "prob",
        q_name: str = "q",
        pos_ins_num_name: str = "pos",
        total_ins_num_name: str = "total",
        print_prefix: str = "",
    ) -> None:
        """Print the result of `get_global_metrics` in trainer 0."""
        names = stat_pos_name, stat_neg_name, sqrerr_name, abserr_name, prob_name, q_name
        found = self.get_global_metrics(scope, *names, pos_ins_num_name, total_ins_num_name)
        if found[-1] is not None:
            text = (
                "%s global AUC=%.6f BUCKET_ERROR=%.6f MAE=%.6f RMSE=%.6f Actural_CTR=%.6f Predicted_CTR=%.6f COPC=%.6f "
                "MEAN Q_VALUE=%.6f Ins number=%s"
            )
            self.rank0_print(text % (print_prefix, *found))

    # ---- passes of online training ----

    def get_online_pass_interval(
        self,
        days: str,
        hours: str,
        split_interval: int | str,
        split_per_pass: int | str,
        is_data_hourly_placed: bool,
    ) -> list[list[str]]:
        """Return the names of the folders of data of each pass of a day, such as [["0000", "0005"], ["0010", "0015"]].

        Args:
            days: makes no difference.
            hours: the first and the last hour, such as "{0..23}" or "0 1 2".
            split_interval: minutes of a folder.
            split_per_pass: folders of a pass.
            is_data_hourly_placed: folders are named by their hour alone.

        Raises ProgramError for hours without a number, and for minutes or folders below 1.
        """
        numbers = [int(word) for word in re.findall(r"\d+", hours)]
        minutes, each = int(split_interval), int(split_per_pass)
        if not numbers or min(minutes, each) < 1:
            raise errors.ProgramError(
                "get_online_pass_interval: expected hours such as '{0..23}', and a positive split_interval and "
                f"split_per_pass, found {hours!r}, {split_interval!r}, {split_per_pass!r}"
            )
        starts = range(0, 24 * 60 // minutes * minutes, minutes)
        times = [divmod(start, 60) for start in starts if numbers[0] <= start // 60 <= numbers[-1]]
        names = [f"{h:02d}" if is_data_hourly_placed else f"{h:02d}{m:02d}" for h, m in times]
        return [names[at : at + each] for at in range(0, len(names) - each + 1, each)]

    # ---- programs ----

    def program_type_trans(self, prog_dir: str, prog_fn: str, is_text: bool) -> str:
        """Write a program file in the other form, text or binary, beside it; return the new file's name."""
        program = _program(os.path.join(prog_dir, prog_fn), is_text)
        name = prog_fn + (".bin" if is_text else ".pbtxt")
        data = program.serialize_to_string() if is_text else str(program).encode()
        with open(os.path.join(prog_dir, name), "wb") as file:
            file.write(data)
        return name

    def draw_from_program_file(self, model_filename: str, is_text: bool, output_dir: str, output_filename: str) -> None:
        """Draw the program of a file; see `draw_from_program`."""
        self.draw_from_program(_program(model_filename, is_text), output_dir, output_filename)

    def draw_from_program(self, program: Program, output_dir: str, output_name: str) -> None:
        """Draw a program as OUTPUT_DIR/OUTPUT_NAME.dot, for Graphviz."""
        debugger.draw_block_graphviz(program.global_block(), path=os.path.join(output_dir, output_name + ".dot"))

    def check_two_programs(self, config: Any) -> bool:
        """Return True if the variables of a pruned program have the shapes and types of the training program.

        Only persistable variables count. Variables that the training program lacks are logged. `config` has Fluid's
        attributes: train_prog_path, is_text_train_program, pruned_prog_path, is_text_pruned_program, draw,
        draw_out_name.
        """
        train = _program(config.train_prog_path, config.is_text_train_program)
        pruned = _program(config.pruned_prog_path, config.is_text_pruned_program)
        if config.draw:
            self.draw_from_program(pruned, os.path.dirname(config.pruned_prog_path), config.draw_out_name)
        alike = True
        for var in _persistable(pruned):
            other = train.global_block().vars.get(var.name)
            if other is None:
                _logger.error("not find variable '%s' in train program. please check pruning.", var.name)
            elif (other.shape, other.dtype) != (var.shape, var.dtype):
                _logger.error(
                    "variable %s: %s %s in the pruned program, %s %s in the training program",
                    *(var.name, var.shape, var.dtype, other.shape, other.dtype),
                )
                alike = False
        return alike

    def parse_program_proto(self, prog_path: str, is_text: bool, output_dir: str) -> None:
        """Write the variables and operators of a program file to vars_all.log, vars_persistable.log and ops.log."""
        program = _program(prog_path, is_text)
        own = [v for v in program.list_vars() if v.type not in (VarType.FEED_MINIBATCH, VarType.FETCH_LIST)]
        variables: list[dict[str, Any]] = [
            {"name": v.name, "shape": str(v.shape), "lod_level": v.lod_level, "dtype": str(v.dtype)} for v in own
        ]
        persistable = {v.name for v in _persistable(program)}
        files = {
            "vars_persistable.log": ("persistable vars:", [v for v in variables if v["name"] in persistable]),
            "vars_all.log": ("all vars:", variables),
            "ops.log": ("ops:", list(_operators(program))),
        }
        for name, (heading, entries) in files.items():
            with open(os.path.join(output_dir, name), "w") as file:
                file.write("\n".join([heading, *map(str, entries), ""]))


_METHODS_OF_PSLIB = (
    "load_fleet_model_one_table load_fleet_model save_fleet_model write_model_donefile write_xbox_donefile "
    "write_cache_donefile load_model save_model save_batch_model save_delta_model save_xbox_base_model "
    "save_cache_model save_cache_base_model pull_all_dense_params save_paddle_inference_model save_paddle_params "
    "get_last_save_xbox_base get_last_save_xbox get_last_save_model"
).split()


def _scope(scope: Scope | None) -> Scope:
    return global_scope() if scope is None else scope


def _total(scope: Scope, name: str) -> np.ndarray:
    """Return the sum of a variable over all trainers."""
    variable = scope.find_var(name)
    assert variable is not None  # its caller has looked
    own = np.array(variable.get_tensor())
    total = np.zeros_like(own)
    fleet._role.all_reduce_worker(own, total)
    return total


def _bucket_error(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the mean relative error of predicted click rates, over groups of neighbouring buckets.

    A group ends when its predicted rate is certain enough, and is dropped when it spans too many rates.
    """
    last, shows, rates, clicks = -1.0, 0.0, 0.0, 0.0
    error = count = 0.0
    for bucket, (click, other) in enumerate(zip(positive.tolist(), negative.tolist(), strict=True)):
        rate = bucket / len(positive)
        if abs(rate - last) > _LARGEST_SPAN:
            last, shows, rates, clicks = rate, 0.0, 0.0, 0.0
        shows, rates, clicks = shows + click + other, rates + rate * (click + other), clicks + click
        predicted = rates / shows if shows else 0.0
        if predicted and math.sqrt((1 - predicted) / (predicted * shows)) < _LARGEST_RELATIVE_ERROR:
            error += abs(clicks / shows / predicted - 1) * shows
            count += shows
            last = -1.0
    return error / count if count else 0.0


def _program(path: str, is_text: bool) -> Program:
    with open(path, "rb") as file:
        data = file.read()
    if is_text:
        try:
            data = text_format.Parse(data.decode(), framework_pb2.ProgramDesc()).SerializeToString()
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise errors.FileFormatError(f"{path}: expected a program as text: {error}") from None
    return Program.parse_from_string(data)


def _persistable(program: Program) -> list[Any]:
    holders = (VarType.FEED_MINIBATCH, VarType.FETCH_LIST, VarType.READER)
    return [v for v in program.list_vars() if v.persistable and v.type not in holders]


def _operators(program: Program) -> Iterator[dict[str, str]]:
    for op in program.global_block().ops:
        names = {"input_arg_names": str(op.input_arg_names), "output_arg_names": str(op.output_arg_names)}
        yield {"type": op.type, **names}
