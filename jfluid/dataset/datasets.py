"""QueueDataset reads files while training; InMemoryDataset reads files before training."""

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.dataset import exchange, shuffle
from jfluid.dataset.data_feed_desc import positive, text_of
from jfluid.dataset.memory_budget import MemoryBudget
from jfluid.dataset.multislot import DatasetSlot, Parser, Records, joined, no_records
from jfluid.dataset.reader_threads import BadLines, ReaderThreads, batches_of, records_of
from jfluid.dataset.text_files import FileSource, ShellCommands
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable

_LOG = logging.getLogger(__name__)


class DatasetFactory:
    """Makes datasets by the name of their class."""

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> "DatasetBase":
        """Return a new dataset: "QueueDataset" or "InMemoryDataset".

        Raises ValueError for a different name.
        """
        classes = {"QueueDataset": QueueDataset, "InMemoryDataset": InMemoryDataset}
        if datafeed_class in ("BoxPSDataset", "PaddleBoxDataFeed", "FileInstantDataset"):
            raise errors.UnsupportedError(f"{datafeed_class} belongs to systems inside Baidu: use InMemoryDataset")
        if datafeed_class not in classes:
            raise ValueError(
                f"datafeed_class: expected one of {sorted(classes)}, found {datafeed_class!r}"
                f"{errors.close_to(str(datafeed_class), classes)}"
            )
        return classes[datafeed_class]()


class DatasetBase:
    """Files with a record of slots in each line."""

    _feed = ""

    def __init__(self) -> None:
        self._slots: list[DatasetSlot] = []
        self._files: list[str] | None = None
        self._batch_size, self._threads = 1, 1
        self._source, self._bad = FileSource(), BadLines()
        self._candidates = 0

    def set_use_var(self, var_list: Sequence[Variable]) -> None:
        """Set the variables that the slots of a line feed, in order.

        int64 variables hold whole numbers, float32 ones decimal numbers; with `lod_level` 1 the
        number of values may differ from record to record, with 0 it is that of the shape behind the
        first dimension.

        Raises DataError for a variable of a different dtype, level or shape.
        """
        slots = [_slot_of(var) for var in var_list]
        names = [s.name for s in slots]
        if not slots or len(set(names)) < len(names):
            raise errors.DataError(f"set_use_var: expected different variables, found {names}")
        self._slots = slots

    def set_batch_size(self, batch_size: int) -> None:
        """Set the records of a batch; the last batch of an epoch has the rest."""
        self._batch_size = positive("set_batch_size", batch_size)

    def set_thread(self, thread_num: int) -> None:
        """Set how many threads read, at most one for each file.

        With one, batches follow the order of the files.
        """
        self._threads = positive("set_thread", thread_num)

    def set_filelist(self, filelist: Sequence[str]) -> None:
        """Set the files: paths, or addresses that fsspec knows, such as "s3://bucket/part-0.gz".

        Compressed ones are known by their ending; with an empty list an epoch has no steps. They are opened
        when they are read. Raises DataError for what is no list of paths.
        """
        if isinstance(filelist, (str, bytes)) or not all(isinstance(f, str) for f in filelist):
            raise errors.DataError(f"set_filelist: expected a list of paths, found {filelist!r}")
        self._files = list(filelist)

    def set_pipe_command(self, pipe_command: str) -> None:
        """Set the shell command that turns a file, on its standard input, into lines; "cat" for none."""
        self._source.pipe_command = pipe_command

    def set_download_cmd(self, download_cmd: str) -> None:
        """Set the shell command that prints a file; the file's name is added behind it."""
        self._source.download_cmd = download_cmd

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Set the filesystem of files without an address.

        `fs_name` is "hdfs://host:port", `fs_ugi` is "user,password" (HDFS takes the user alone).
        """
        self._source.filesystem = fs_name
        self._source.options = {"user": fs_ugi.partition(",")[0]} if fs_ugi else None

    def set_on_bad_lines(self, on_bad_lines: str) -> None:
        """Choose the reaction to invalid lines: "error" (the default) or "skip".

        "error" raises with file, number and slot; "skip" counts the line (`bad_lines`) and continues. Fluid has no
        such choice.
        """
        if on_bad_lines not in ("error", "skip"):
            raise errors.DataError(f"set_on_bad_lines: expected 'error' or 'skip', found {on_bad_lines!r}")
        self._bad.skip = on_bad_lines == "skip"

    def bad_lines(self) -> int:
        """Return how many lines were skipped."""
        return self._bad.count

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Allow `slots_shuffle`, which draws values from `record_candidate_size` records."""
        self._candidates = positive("record_candidate_size", record_candidate_size) if fea_eval else 0

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Raise UnsupportedError: only an InMemoryDataset has its records in memory."""
        raise errors.UnsupportedError(f"{type(self).__name__}.slots_shuffle: use InMemoryDataset")

    def set_rank_offset(self, rank_offset: str) -> None:
        """Raise UnsupportedError unless the name is empty."""
        _box_only("set_rank_offset", rank_offset)

    def set_pv_batch_size(self, pv_batch_size: int) -> None:
        """Set the page views of a batch.

        Page views are not supported, so only the number is checked.
        """
        positive("set_pv_batch_size", pv_batch_size)

    def desc(self) -> str:
        """Return the description of the dataset's slots, as prototxt."""
        return text_of(self._feed, self._batch_size, self._slots, self._source.pipe_command)

    def _batches(self, threads: int = 0) -> "ReaderThreads":
        """Return the feeds of an epoch, made by threads that the `with` block starts and ends."""
        raise NotImplementedError

    def _steps(self) -> int | None:
        """Return the number of batches of an epoch; None if only reading the files tells it."""
        return None

    def _ready(self) -> list[str]:
        """Return the files to read. Raises DataError where the slots or the files were not set."""
        if not self._slots:
            raise errors.DataError(f"{type(self).__name__}: call set_use_var first: no slot feeds a variable")
        if self._files is None:
            raise errors.DataError(f"{type(self).__name__}: call set_filelist first")
        if not self._files:
            _LOG.warning("%s: the list of files is empty: there is nothing to read", type(self).__name__)
        return self._files

    def _parser(self) -> Parser:
        return Parser(self._slots)


class QueueDataset(DatasetBase):
    """Reads its files while the program trains; nothing is kept."""

    _feed = "MultiSlotDataFeed"

    def local_shuffle(self) -> None:
        """Raise UnsupportedError: use InMemoryDataset."""
        raise errors.UnsupportedError("QueueDataset.local_shuffle: records pass by only once: use InMemoryDataset")

    def global_shuffle(self, fleet: Any = None) -> None:
        """Raise UnsupportedError: use InMemoryDataset."""
        raise errors.UnsupportedError("QueueDataset.global_shuffle: records pass by only once: use InMemoryDataset")

    def _batches(self, threads: int = 0) -> ReaderThreads:
        paths = self._ready()

        def work(files: Iterator[str], started: ShellCommands) -> Iterator[Any]:
            parser = self._parser()
            blocks = (r for file in files for r in records_of(file, self._source, parser, self._bad, started))
            return batches_of(blocks, parser, self._batch_size)

        return ReaderThreads(paths, work, threads or self._threads)


class InMemoryDataset(DatasetBase):
    """Reads its files into memory, where records can be shuffled, also between trainers.

    Records, with the copies that reading and shuffling make, take up to FLAGS_dataset_max_bytes (by
    default three quarters of the machine's memory). A method that would need more raises DataError
    first; records in memory stay.

    As in Fluid zeros of ragged slots are left out, but for one where there is nothing else.
    """

    _feed = "MultiSlotInMemoryDataFeed"

    def __init__(self) -> None:
        super().__init__()
        self._records: Records | None = None
        self._order: Any = None  # the order in which records are fed; None for that of the files
        self._unmixed: Records | None = None
        self._loading: _Loading | None = None
        self._tags, self._merge_size = 0, -1
        self._message_size, self._message_pause = 1024, 0.0
        self._received = 0

    @property
    def dataset(self) -> "InMemoryDataset":
        """The dataset: in Fluid the C++ object behind it, which has methods of the same names."""
        return self

    def set_queue_num(self, queue_num: int) -> None:
        """Set the queues between readers and trainers.

        There is one here, so the number has no effect.
        """
        positive("set_queue_num", queue_num)

    @property
    def parse_ins_id(self) -> bool:
        """True if each line begins with the record's name."""
        return self._tags > 0

    def set_parse_ins_id(self, parse_ins_id: bool) -> None:
        """Set that each line begins with "1 id", the name of the record."""
        self._tags = max(self._tags, 1) if parse_ins_id else 0

    def set_parse_content(self, parse_content: bool) -> None:
        """Set that "1 text" follows the id of a record; the text is left out."""
        self._tags = 2 if parse_content else min(self._tags, 1)

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """Let `global_shuffle` merge the records of an id into one record.

        Ragged slots are concatenated; dense slots are taken from the first record. Ids without exactly `merge_size`
        records are dropped (0: none is).
        """
        if merge_size < 0:
            raise errors.DataError(f"set_merge_by_lineid: expected a number of records, found {merge_size}")
        self._merge_size = merge_size
        self.set_parse_ins_id(True)

    def set_fleet_send_batch_size(self, fleet_send_batch_size: int = 1024) -> None:
        """Set how many records travel in one message of `global_shuffle`."""
        self._message_size = positive("set_fleet_send_batch_size", fleet_send_batch_size)

    def set_fleet_send_sleep_seconds(self, fleet_send_sleep_seconds: float = 0) -> None:
        """Set the pause between messages of `global_shuffle`, in seconds."""
        self._message_pause = float(fleet_send_sleep_seconds)

    def load_into_memory(self) -> None:
        """Read all files.

        Raises DataError for a file or a line that cannot be read; the dataset is empty then.
        """
        self.preload_into_memory()
        self.wait_preload_done()

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begin to read all files in `thread_num` threads; `wait_preload_done` waits for the end."""
        files = self._ready()
        self._drop()
        threads = self._threads if thread_num is None else positive("thread_num", thread_num)
        self._loading = _Loading(self, files, threads)

    def wait_preload_done(self) -> None:
        """Wait until all files are read. Raises the errors of `load_into_memory`."""
        if self._loading is None:
            raise errors.DataError("wait_preload_done: call preload_into_memory first")
        loading, self._loading = self._loading, None
        self._records = loading.result()

    def release_memory(self) -> None:
        """Forget the records."""
        self._drop()

    def local_shuffle(self) -> None:
        """Put the records into random order; Python's `random.seed` makes it repeatable."""
        records = self._loaded("local_shuffle")
        self._budget("local_shuffle").take(8 * len(records))
        self._order = shuffle.generator().permutation(len(records))

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Send each record to a random trainer, and shuffle the received records.

        Args:
            fleet: tells this trainer's place among the trainers; None for a single one.
            thread_num: threads that send. One per trainer is enough here, so the number has no
                effect.
        """
        records = self._loaded("global_shuffle")
        draw, budget = shuffle.generator(), self._budget("global_shuffle")
        if fleet is not None and fleet.worker_num() > 1:
            records = exchange.shuffled(
                records,
                self._slots,
                self._tags > 0,
                fleet,
                draw,
                self._message_size,
                self._message_pause,
                budget.take,
            )
            self._received = len(records)
        if self._merge_size >= 0:
            dense = np.array([s.shape is not None for s in self._slots])
            budget.take(records.nbytes)
            records, dropped = shuffle.merged_by_tag(records, dense, self._merge_size)
            if dropped:
                import warnings

                warnings.warn(
                    f"global_shuffle: {dropped} records dropped: their id has not {self._merge_size} records",
                    RuntimeWarning,
                    stacklevel=2,
                )
        budget.take(8 * len(records))
        self._records, self._order = records, draw.permutation(len(records))

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Give each record the values of `slots` of a random record.

        The loss of accuracy measures the importance of the slots for a model.

        Each call starts from the records as they were read. Raises DataError unless `set_fea_eval`
        allowed it.
        """
        if not self._candidates:
            raise errors.DataError("slots_shuffle: call set_fea_eval(record_candidate_size, True) first")
        names = [s.name for s in self._slots]
        unknown = sorted(set(slots) - set(names))
        if unknown:
            raise errors.DataError(f"slots_shuffle: no slots {unknown}; the slots are {names}")
        if self._unmixed is None:
            self._unmixed = self._loaded("slots_shuffle")
        # a record may get more values than it had
        self._budget("slots_shuffle").take(2 * self._unmixed.nbytes)
        draw, count = shuffle.generator(), len(self._unmixed)
        candidates = draw.choice(count, min(self._candidates, count), replace=False)
        donors = candidates[draw.integers(0, len(candidates), count)] if count else candidates
        self._records = shuffle.with_slots_of(self._unmixed, np.isin(names, list(slots)), donors)

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """Return how many records are in memory, of all trainers if `fleet` is given."""
        own = 0 if self._records is None else len(self._records)
        return own if fleet is None else exchange.total(own, fleet)

    def get_shuffle_data_size(self, fleet: Any = None) -> int:
        """Return the number of records after the last `global_shuffle`; with `fleet`, of all trainers."""
        return self._received if fleet is None else exchange.total(self._received, fleet)

    # What belongs to Baidu's PaddleBox and pslib: page views, phases, tables that are filled while
    # reading.

    def set_feed_type(self, data_feed_type: str) -> None:
        """Set the reader's class: "MultiSlotInMemoryDataFeed".

        Raises UnsupportedError for "PaddleBoxDataFeed".
        """
        if data_feed_type != self._feed:
            _box_only("set_feed_type", data_feed_type)

    def set_parse_logkey(self, parse_logkey: bool) -> None:
        """Raise UnsupportedError unless False."""
        _box_only("set_parse_logkey", parse_logkey)

    def set_merge_by_sid(self, merge_by_sid: bool) -> None:
        """Raise UnsupportedError unless False."""
        _box_only("set_merge_by_sid", merge_by_sid)

    def set_enable_pv_merge(self, enable_pv_merge: bool) -> None:
        """Raise UnsupportedError unless False."""
        _box_only("set_enable_pv_merge", enable_pv_merge)

    def set_current_phase(self, current_phase: int) -> None:
        """Raise UnsupportedError for the join phase, 1; 0 is the update phase, which every dataset is in."""
        _box_only("set_current_phase", current_phase)

    def preprocess_instance(self) -> None:
        """Raise UnsupportedError: merges page views."""
        _box_only("preprocess_instance", "page views")

    def postprocess_instance(self) -> None:
        """Raise UnsupportedError: splits page views."""
        _box_only("postprocess_instance", "page views")

    def get_pv_data_size(self) -> int:
        """Raise UnsupportedError: counts page views."""
        raise errors.UnsupportedError(
            "get_pv_data_size: page views belong to PaddleBox; get_memory_data_size counts records"
        )

    def set_generate_unique_feasigns(self, generate_uni_feasigns: bool, shard_num: int) -> None:
        """Check `shard_num`, the shards that keys would be collected in for `generate_local_tables_unlock`.

        Nothing is collected: tables here are filled when their rows are first used.
        """
        positive("shard_num", shard_num)

    def generate_local_tables_unlock(
        self,
        table_id: int,
        fea_dim: int,
        read_thread_num: int,
        consume_thread_num: int,
        shard_num: int,
    ) -> None:
        """Raise UnsupportedError: tables are filled when their rows are first used."""
        _box_only("generate_local_tables_unlock", f"table {table_id}")

    def _steps(self) -> int:
        records = self._loaded("training")
        return -(-(len(records) if self._order is None else len(self._order)) // self._batch_size)

    def _batches(self, threads: int = 0) -> ReaderThreads:
        records = self._loaded("training")
        order = np.arange(len(records)) if self._order is None else self._order
        places = [order[i : i + self._batch_size] for i in range(0, len(order), self._batch_size)]

        def work(jobs: Iterator[Any], started: ShellCommands) -> Iterator[Any]:
            parser = self._parser()
            return (parser.batch(records, job) for job in jobs)

        return ReaderThreads(places, work, 1)

    def _parser(self) -> Parser:
        return Parser(self._slots, self._tags, drop_zeros=True)

    def _loaded(self, what: str) -> Records:
        if self._records is None:
            raise errors.DataError(
                f"{what}: no records in memory: call load_into_memory"
                + (" (wait_preload_done is still to be called)" if self._loading else "")
            )
        return self._records

    def _budget(self, what: str) -> MemoryBudget:
        """Return the memory that may be allocated beside the records in memory."""
        held = {r.values.ctypes.data: r.nbytes for r in (self._records, self._unmixed) if r is not None}
        return MemoryBudget(f"{type(self).__name__}.{what}", sum(held.values()))

    def _drop(self) -> None:
        self._records = self._order = self._unmixed = None
        self._received = 0


class _Loading:
    """Reads the files of a dataset in the background, and puts their records into the order of the files."""

    def __init__(self, dataset: InMemoryDataset, files: list[str], threads: int):
        self._parts: dict[int, list[Records]] = {}
        self._error: BaseException | None = None
        self._slots = len(dataset._slots)
        self._budget = MemoryBudget(f"{type(dataset).__name__}.load_into_memory")

        def work(jobs: Iterator[tuple[int, str]], started: ShellCommands) -> Iterator[Any]:
            parser = dataset._parser()
            return (
                (i, r) for i, file in jobs for r in records_of(file, dataset._source, parser, dataset._bad, started)
            )

        self._reader_threads = ReaderThreads(list(enumerate(files)), work, threads)
        self._thread = threading.Thread(target=self._run, name="jfluid-load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._reader_threads as items:
                for i, records in items:
                    self._budget.take(2 * records.nbytes)  # in the end they are concatenated
                    self._parts.setdefault(i, []).append(records)
        except BaseException as error:
            self._error = error
            self._parts.clear()

    def result(self) -> Records:
        try:
            self._thread.join()
        except BaseException:  # Ctrl-C: no thread keeps running in the background
            self._reader_threads.stop()
            raise
        if self._error is not None:
            raise self._error
        parts = [r for i in sorted(self._parts) for r in self._parts[i]]
        return joined(parts) if parts else no_records(self._slots)


def _slot_of(var: Variable) -> DatasetSlot:
    if var.dtype not in (VarType.INT64, VarType.FP32):
        raise errors.DataError(f"set_use_var: {var.name}: expected dtype int64 or float32, found {var.dtype.name}")
    shape = tuple(var.shape[1:])
    if var.lod_level > 1 or (var.lod_level == 1 and shape not in ((), (1,))):
        raise errors.DataError(
            f"set_use_var: {var.name}: a ragged slot is [None, 1] with lod_level 1, found shape "
            f"{list(var.shape)} with lod_level {var.lod_level}"
        )
    if var.lod_level == 0 and any(d < 1 for d in shape):
        raise errors.DataError(
            f"set_use_var: {var.name}: a dense slot must know all dimensions but the first, found shape "
            f"{list(var.shape)}"
        )
    return DatasetSlot(var.name, var.dtype == VarType.FP32, shape if var.lod_level == 0 else None)


def _box_only(name: str, value: Any) -> None:
    """Refuse options of PaddleBox and pslib, unless the value turns the option off."""
    if value:
        raise errors.UnsupportedError(
            f"{name}({value!r}): page views, log keys and tables filled while reading belong to "
            "PaddleBox and pslib, which Fluid's own release does not have either"
        )
