from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRADIENT: _ClassVar[Change]
    ADD: _ClassVar[Change]
    ASSIGN: _ClassVar[Change]
GRADIENT: Change
ADD: Change
ASSIGN: Change

class Caller(_message.Message):
    __slots__ = ("trainer", "incarnation", "sequence", "outstanding", "server_incarnation")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    trainer: int
    incarnation: int
    sequence: int
    outstanding: int
    server_incarnation: int
    def __init__(self, trainer: _Optional[int] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., outstanding: _Optional[int] = ..., server_incarnation: _Optional[int] = ...) -> None: ...

class CreateRequest(_message.Message):
    __slots__ = ("server", "servers", "tables", "blocks")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    server: int
    servers: int
    tables: _containers.RepeatedScalarFieldContainer[bytes]
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, server: _Optional[int] = ..., servers: _Optional[int] = ..., tables: _Optional[_Iterable[bytes]] = ..., blocks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CreateReply(_message.Message):
    __slots__ = ("server_incarnation",)
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    server_incarnation: int
    def __init__(self, server_incarnation: _Optional[int] = ...) -> None: ...

class RowsChange(_message.Message):
    __slots__ = ("table", "change", "ids", "values", "learning_rate")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    table: str
    change: Change
    ids: bytes
    values: bytes
    learning_rate: float
    def __init__(self, table: _Optional[str] = ..., change: _Optional[_Union[Change, str]] = ..., ids: _Optional[bytes] = ..., values: _Optional[bytes] = ..., learning_rate: _Optional[float] = ...) -> None: ...

class BlockChange(_message.Message):
    __slots__ = ("block", "change", "values", "learning_rate")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    block: str
    change: Change
    values: bytes
    learning_rate: float
    def __init__(self, block: _Optional[str] = ..., change: _Optional[_Union[Change, str]] = ..., values: _Optional[bytes] = ..., learning_rate: _Optional[float] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("caller", "round", "rows", "blocks", "hold", "state")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    round: int
    rows: _containers.RepeatedCompositeFieldContainer[RowsChange]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockChange]
    hold: bool
    state: bytes
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., round: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[RowsChange, _Mapping]]] = ..., blocks: _Optional[_Iterable[_Union[BlockChange, _Mapping]]] = ..., hold: bool = ..., state: _Optional[bytes] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("applied", "rounds", "durable", "server_incarnation")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    applied: bool
    rounds: int
    durable: int
    server_incarnation: int
    def __init__(self, applied: bool = ..., rounds: _Optional[int] = ..., durable: _Optional[int] = ..., server_incarnation: _Optional[int] = ...) -> None: ...

class RowsWanted(_message.Message):
    __slots__ = ("table", "ids", "counts")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    table: str
    ids: bytes
    counts: bytes
    def __init__(self, table: _Optional[str] = ..., ids: _Optional[bytes] = ..., counts: _Optional[bytes] = ...) -> None: ...

class BlockWanted(_message.Message):
    __slots__ = ("block", "known", "server_incarnation")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    block: str
    known: int
    server_incarnation: int
    def __init__(self, block: _Optional[str] = ..., known: _Optional[int] = ..., server_incarnation: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("caller", "round", "rows", "blocks", "confirm", "server_incarnation")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    round: int
    rows: _containers.RepeatedCompositeFieldContainer[RowsWanted]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockWanted]
    confirm: bool
    server_incarnation: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., round: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[RowsWanted, _Mapping]]] = ..., blocks: _Optional[_Iterable[_Union[BlockWanted, _Mapping]]] = ..., confirm: bool = ..., server_incarnation: _Optional[int] = ...) -> None: ...

class BlockValue(_message.Message):
    __slots__ = ("version", "value")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    version: int
    value: bytes
    def __init__(self, version: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("rows", "blocks", "rounds", "server_incarnation", "durable", "counted")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockValue]
    rounds: int
    server_incarnation: int
    durable: int
    counted: bool
    def __init__(self, rows: _Optional[_Iterable[bytes]] = ..., blocks: _Optional[_Iterable[_Union[BlockValue, _Mapping]]] = ..., rounds: _Optional[int] = ..., server_incarnation: _Optional[int] = ..., durable: _Optional[int] = ..., counted: bool = ...) -> None: ...

class ExchangeRequest(_message.Message):
    __slots__ = ("push", "pull")
    PUSH_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    push: PushRequest
    pull: PullRequest
    def __init__(self, push: _Optional[_Union[PushRequest, _Mapping]] = ..., pull: _Optional[_Union[PullRequest, _Mapping]] = ...) -> None: ...

class ExchangeReply(_message.Message):
    __slots__ = ("push", "pull")
    PUSH_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    push: PushReply
    pull: PullReply
    def __init__(self, push: _Optional[_Union[PushReply, _Mapping]] = ..., pull: _Optional[_Union[PullReply, _Mapping]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("port", "beside")
    PORT_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    port: int
    beside: int
    def __init__(self, port: _Optional[int] = ..., beside: _Optional[int] = ...) -> None: ...

class LookUpRequest(_message.Message):
    __slots__ = ("table", "ids", "slot", "server_incarnation")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    table: str
    ids: bytes
    slot: str
    server_incarnation: int
    def __init__(self, table: _Optional[str] = ..., ids: _Optional[bytes] = ..., slot: _Optional[str] = ..., server_incarnation: _Optional[int] = ...) -> None: ...

class LookUpReply(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    def __init__(self, values: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("total", "data")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    total: int
    data: bytes
    def __init__(self, total: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class BarrierRequest(_message.Message):
    __slots__ = ("caller", "name", "number", "passed")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    name: str
    number: int
    passed: bool
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., name: _Optional[str] = ..., number: _Optional[int] = ..., passed: bool = ...) -> None: ...

class BarrierReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("server_incarnation",)
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    server_incarnation: int
    def __init__(self, server_incarnation: _Optional[int] = ...) -> None: ...

class ShrinkRequest(_message.Message):
    __slots__ = ("caller", "table", "age")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    table: str
    age: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., table: _Optional[str] = ..., age: _Optional[int] = ...) -> None: ...

class ShrinkReply(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    def __init__(self, rows: _Optional[int] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("folder", "snapshot", "tables")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    folder: str
    snapshot: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, folder: _Optional[str] = ..., snapshot: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class SaveReply(_message.Message):
    __slots__ = ("rows", "bytes", "seconds")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    bytes: int
    seconds: float
    def __init__(self, rows: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("folder", "snapshot", "tables")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    folder: str
    snapshot: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, folder: _Optional[str] = ..., snapshot: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class RestoreReply(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    def __init__(self, snapshot: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("trainer",)
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    trainer: int
    def __init__(self, trainer: _Optional[int] = ...) -> None: ...

class TableStatus(_message.Message):
    __slots__ = ("rows", "waiting", "bytes", "step", "spec")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    rows: int
    waiting: int
    bytes: int
    step: int
    spec: bytes
    def __init__(self, rows: _Optional[int] = ..., waiting: _Optional[int] = ..., bytes: _Optional[int] = ..., step: _Optional[int] = ..., spec: _Optional[bytes] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("server", "servers", "server_incarnation", "rounds", "lost", "incarnation", "through", "tables", "blocks", "trainers", "snapshot", "confirmed", "latest", "went_back")
    class TablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TableStatus
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TableStatus, _Mapping]] = ...) -> None: ...
    class BlocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SERVER_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    WENT_BACK_FIELD_NUMBER: _ClassVar[int]
    server: int
    servers: int
    server_incarnation: int
    rounds: int
    lost: int
    incarnation: int
    through: int
    tables: _containers.MessageMap[str, TableStatus]
    blocks: _containers.ScalarMap[str, int]
    trainers: _containers.RepeatedScalarFieldContainer[int]
    snapshot: str
    confirmed: bool
    latest: int
    went_back: str
    def __init__(self, server: _Optional[int] = ..., servers: _Optional[int] = ..., server_incarnation: _Optional[int] = ..., rounds: _Optional[int] = ..., lost: _Optional[int] = ..., incarnation: _Optional[int] = ..., through: _Optional[int] = ..., tables: _Optional[_Mapping[str, TableStatus]] = ..., blocks: _Optional[_Mapping[str, int]] = ..., trainers: _Optional[_Iterable[int]] = ..., snapshot: _Optional[str] = ..., confirmed: bool = ..., latest: _Optional[int] = ..., went_back: _Optional[str] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("caller", "knows")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KNOWS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    knows: bool
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., knows: bool = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ("durable", "durable_pulls", "over")
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_PULLS_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    durable: int
    durable_pulls: int
    over: bool
    def __init__(self, durable: _Optional[int] = ..., durable_pulls: _Optional[int] = ..., over: bool = ...) -> None: ...

class RecoveryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecoveryReply(_message.Message):
    __slots__ = ("decided", "rounds", "snapshots", "planned", "writing", "retained", "newest")
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    WRITING_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    decided: bool
    rounds: int
    snapshots: _containers.RepeatedScalarFieldContainer[int]
    planned: int
    writing: int
    retained: _containers.RepeatedScalarFieldContainer[int]
    newest: int
    def __init__(self, decided: bool = ..., rounds: _Optional[int] = ..., snapshots: _Optional[_Iterable[int]] = ..., planned: _Optional[int] = ..., writing: _Optional[int] = ..., retained: _Optional[_Iterable[int]] = ..., newest: _Optional[int] = ...) -> None: ...

class PlanSnapshotRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class PlanSnapshotReply(_message.Message):
    __slots__ = ("accepted", "rounds")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    rounds: int
    def __init__(self, accepted: bool = ..., rounds: _Optional[int] = ...) -> None: ...

class RetainSnapshotsRequest(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rounds: _Optional[_Iterable[int]] = ...) -> None: ...

class RetainSnapshotsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateVariable(_message.Message):
    __slots__ = ("name", "dtype", "shape", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    value: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., value: _Optional[bytes] = ...) -> None: ...

class TrainerState(_message.Message):
    __slots__ = ("round", "variables", "runs", "sizes")
    class RunsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    round: int
    variables: _containers.RepeatedCompositeFieldContainer[StateVariable]
    runs: _containers.ScalarMap[str, int]
    sizes: bytes
    def __init__(self, round: _Optional[int] = ..., variables: _Optional[_Iterable[_Union[StateVariable, _Mapping]]] = ..., runs: _Optional[_Mapping[str, int]] = ..., sizes: _Optional[bytes] = ...) -> None: ...

class TrainerStateRequest(_message.Message):
    __slots__ = ("trainer",)
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    trainer: int
    def __init__(self, trainer: _Optional[int] = ...) -> None: ...

class TrainerStateReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: bytes
    def __init__(self, state: _Optional[bytes] = ...) -> None: ...
