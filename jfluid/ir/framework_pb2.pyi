from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttrType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INT: _ClassVar[AttrType]
    FLOAT: _ClassVar[AttrType]
    STRING: _ClassVar[AttrType]
    INTS: _ClassVar[AttrType]
    FLOATS: _ClassVar[AttrType]
    STRINGS: _ClassVar[AttrType]
    BOOLEAN: _ClassVar[AttrType]
    BOOLEANS: _ClassVar[AttrType]
    BLOCK: _ClassVar[AttrType]
    LONG: _ClassVar[AttrType]
    BLOCKS: _ClassVar[AttrType]
    LONGS: _ClassVar[AttrType]
INT: AttrType
FLOAT: AttrType
STRING: AttrType
INTS: AttrType
FLOATS: AttrType
STRINGS: AttrType
BOOLEAN: AttrType
BOOLEANS: AttrType
BLOCK: AttrType
LONG: AttrType
BLOCKS: AttrType
LONGS: AttrType

class Version(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class OpDesc(_message.Message):
    __slots__ = ("inputs", "outputs", "type", "attrs", "is_target")
    class Attr(_message.Message):
        __slots__ = ("name", "type", "i", "f", "s", "ints", "floats", "strings", "b", "bools", "block_idx", "l", "blocks_idx", "longs")
        NAME_FIELD_NUMBER: _ClassVar[int]
        TYPE_FIELD_NUMBER: _ClassVar[int]
        I_FIELD_NUMBER: _ClassVar[int]
        F_FIELD_NUMBER: _ClassVar[int]
        S_FIELD_NUMBER: _ClassVar[int]
        INTS_FIELD_NUMBER: _ClassVar[int]
        FLOATS_FIELD_NUMBER: _ClassVar[int]
        STRINGS_FIELD_NUMBER: _ClassVar[int]
        B_FIELD_NUMBER: _ClassVar[int]
        BOOLS_FIELD_NUMBER: _ClassVar[int]
        BLOCK_IDX_FIELD_NUMBER: _ClassVar[int]
        L_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_IDX_FIELD_NUMBER: _ClassVar[int]
        LONGS_FIELD_NUMBER: _ClassVar[int]
        name: str
        type: AttrType
        i: int
        f: float
        s: str
        ints: _containers.RepeatedScalarFieldContainer[int]
        floats: _containers.RepeatedScalarFieldContainer[float]
        strings: _containers.RepeatedScalarFieldContainer[str]
        b: bool
        bools: _containers.RepeatedScalarFieldContainer[bool]
        block_idx: int
        l: int
        blocks_idx: _containers.RepeatedScalarFieldContainer[int]
        longs: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[AttrType, str]] = ..., i: _Optional[int] = ..., f: _Optional[float] = ..., s: _Optional[str] = ..., ints: _Optional[_Iterable[int]] = ..., floats: _Optional[_Iterable[float]] = ..., strings: _Optional[_Iterable[str]] = ..., b: bool = ..., bools: _Optional[_Iterable[bool]] = ..., block_idx: _Optional[int] = ..., l: _Optional[int] = ..., blocks_idx: _Optional[_Iterable[int]] = ..., longs: _Optional[_Iterable[int]] = ...) -> None: ...
    class Var(_message.Message):
        __slots__ = ("parameter", "arguments")
        PARAMETER_FIELD_NUMBER: _ClassVar[int]
        ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
        parameter: str
        arguments: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, parameter: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ...) -> None: ...
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ATTRS_FIELD_NUMBER: _ClassVar[int]
    IS_TARGET_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[OpDesc.Var]
    outputs: _containers.RepeatedCompositeFieldContainer[OpDesc.Var]
    type: str
    attrs: _containers.RepeatedCompositeFieldContainer[OpDesc.Attr]
    is_target: bool
    def __init__(self, inputs: _Optional[_Iterable[_Union[OpDesc.Var, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[OpDesc.Var, _Mapping]]] = ..., type: _Optional[str] = ..., attrs: _Optional[_Iterable[_Union[OpDesc.Attr, _Mapping]]] = ..., is_target: bool = ...) -> None: ...

class VarType(_message.Message):
    __slots__ = ("type", "selected_rows", "lod_tensor", "tensor_array", "reader", "tuple")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        BOOL: _ClassVar[VarType.Type]
        INT16: _ClassVar[VarType.Type]
        INT32: _ClassVar[VarType.Type]
        INT64: _ClassVar[VarType.Type]
        FP16: _ClassVar[VarType.Type]
        FP32: _ClassVar[VarType.Type]
        FP64: _ClassVar[VarType.Type]
        SIZE_T: _ClassVar[VarType.Type]
        UINT8: _ClassVar[VarType.Type]
        INT8: _ClassVar[VarType.Type]
        BF16: _ClassVar[VarType.Type]
        LOD_TENSOR: _ClassVar[VarType.Type]
        SELECTED_ROWS: _ClassVar[VarType.Type]
        FEED_MINIBATCH: _ClassVar[VarType.Type]
        FETCH_LIST: _ClassVar[VarType.Type]
        STEP_SCOPES: _ClassVar[VarType.Type]
        LOD_RANK_TABLE: _ClassVar[VarType.Type]
        LOD_TENSOR_ARRAY: _ClassVar[VarType.Type]
        PLACE_LIST: _ClassVar[VarType.Type]
        READER: _ClassVar[VarType.Type]
        RAW: _ClassVar[VarType.Type]
        TUPLE: _ClassVar[VarType.Type]
    BOOL: VarType.Type
    INT16: VarType.Type
    INT32: VarType.Type
    INT64: VarType.Type
    FP16: VarType.Type
    FP32: VarType.Type
    FP64: VarType.Type
    SIZE_T: VarType.Type
    UINT8: VarType.Type
    INT8: VarType.Type
    BF16: VarType.Type
    LOD_TENSOR: VarType.Type
    SELECTED_ROWS: VarType.Type
    FEED_MINIBATCH: VarType.Type
    FETCH_LIST: VarType.Type
    STEP_SCOPES: VarType.Type
    LOD_RANK_TABLE: VarType.Type
    LOD_TENSOR_ARRAY: VarType.Type
    PLACE_LIST: VarType.Type
    READER: VarType.Type
    RAW: VarType.Type
    TUPLE: VarType.Type
    class TensorDesc(_message.Message):
        __slots__ = ("data_type", "dims")
        DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
        DIMS_FIELD_NUMBER: _ClassVar[int]
        data_type: VarType.Type
        dims: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, data_type: _Optional[_Union[VarType.Type, str]] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...
    class LoDTensorDesc(_message.Message):
        __slots__ = ("tensor", "lod_level")
        TENSOR_FIELD_NUMBER: _ClassVar[int]
        LOD_LEVEL_FIELD_NUMBER: _ClassVar[int]
        tensor: VarType.TensorDesc
        lod_level: int
        def __init__(self, tensor: _Optional[_Union[VarType.TensorDesc, _Mapping]] = ..., lod_level: _Optional[int] = ...) -> None: ...
    class LoDTensorArrayDesc(_message.Message):
        __slots__ = ("tensor", "lod_level")
        TENSOR_FIELD_NUMBER: _ClassVar[int]
        LOD_LEVEL_FIELD_NUMBER: _ClassVar[int]
        tensor: VarType.TensorDesc
        lod_level: int
        def __init__(self, tensor: _Optional[_Union[VarType.TensorDesc, _Mapping]] = ..., lod_level: _Optional[int] = ...) -> None: ...
    class ReaderDesc(_message.Message):
        __slots__ = ("lod_tensor",)
        LOD_TENSOR_FIELD_NUMBER: _ClassVar[int]
        lod_tensor: _containers.RepeatedCompositeFieldContainer[VarType.LoDTensorDesc]
        def __init__(self, lod_tensor: _Optional[_Iterable[_Union[VarType.LoDTensorDesc, _Mapping]]] = ...) -> None: ...
    class Tuple(_message.Message):
        __slots__ = ("element_type",)
        ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
        element_type: _containers.RepeatedScalarFieldContainer[VarType.Type]
        def __init__(self, element_type: _Optional[_Iterable[_Union[VarType.Type, str]]] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SELECTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    LOD_TENSOR_FIELD_NUMBER: _ClassVar[int]
    TENSOR_ARRAY_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    TUPLE_FIELD_NUMBER: _ClassVar[int]
    type: VarType.Type
    selected_rows: VarType.TensorDesc
    lod_tensor: VarType.LoDTensorDesc
    tensor_array: VarType.LoDTensorArrayDesc
    reader: VarType.ReaderDesc
    tuple: VarType.Tuple
    def __init__(self, type: _Optional[_Union[VarType.Type, str]] = ..., selected_rows: _Optional[_Union[VarType.TensorDesc, _Mapping]] = ..., lod_tensor: _Optional[_Union[VarType.LoDTensorDesc, _Mapping]] = ..., tensor_array: _Optional[_Union[VarType.LoDTensorArrayDesc, _Mapping]] = ..., reader: _Optional[_Union[VarType.ReaderDesc, _Mapping]] = ..., tuple: _Optional[_Union[VarType.Tuple, _Mapping]] = ...) -> None: ...

class VarDesc(_message.Message):
    __slots__ = ("name", "type", "persistable", "need_check_feed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PERSISTABLE_FIELD_NUMBER: _ClassVar[int]
    NEED_CHECK_FEED_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: VarType
    persistable: bool
    need_check_feed: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[VarType, _Mapping]] = ..., persistable: bool = ..., need_check_feed: bool = ...) -> None: ...

class BlockDesc(_message.Message):
    __slots__ = ("idx", "parent_idx", "vars", "ops", "forward_block_idx")
    IDX_FIELD_NUMBER: _ClassVar[int]
    PARENT_IDX_FIELD_NUMBER: _ClassVar[int]
    VARS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_BLOCK_IDX_FIELD_NUMBER: _ClassVar[int]
    idx: int
    parent_idx: int
    vars: _containers.RepeatedCompositeFieldContainer[VarDesc]
    ops: _containers.RepeatedCompositeFieldContainer[OpDesc]
    forward_block_idx: int
    def __init__(self, idx: _Optional[int] = ..., parent_idx: _Optional[int] = ..., vars: _Optional[_Iterable[_Union[VarDesc, _Mapping]]] = ..., ops: _Optional[_Iterable[_Union[OpDesc, _Mapping]]] = ..., forward_block_idx: _Optional[int] = ...) -> None: ...

class CompatibleInfo(_message.Message):
    __slots__ = ("version", "type")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COMPATIBLE: _ClassVar[CompatibleInfo.Type]
        DEFINITELY_NOT: _ClassVar[CompatibleInfo.Type]
        POSSIBLE: _ClassVar[CompatibleInfo.Type]
        BUG_FIX: _ClassVar[CompatibleInfo.Type]
        PRECISION_CHANGE: _ClassVar[CompatibleInfo.Type]
    COMPATIBLE: CompatibleInfo.Type
    DEFINITELY_NOT: CompatibleInfo.Type
    POSSIBLE: CompatibleInfo.Type
    BUG_FIX: CompatibleInfo.Type
    PRECISION_CHANGE: CompatibleInfo.Type
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    version: str
    type: CompatibleInfo.Type
    def __init__(self, version: _Optional[str] = ..., type: _Optional[_Union[CompatibleInfo.Type, str]] = ...) -> None: ...

class OpCompatibleMap(_message.Message):
    __slots__ = ("pair", "default_required_version")
    class OpCompatiblePair(_message.Message):
        __slots__ = ("op_name", "compatible_info")
        OP_NAME_FIELD_NUMBER: _ClassVar[int]
        COMPATIBLE_INFO_FIELD_NUMBER: _ClassVar[int]
        op_name: str
        compatible_info: CompatibleInfo
        def __init__(self, op_name: _Optional[str] = ..., compatible_info: _Optional[_Union[CompatibleInfo, _Mapping]] = ...) -> None: ...
    PAIR_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_REQUIRED_VERSION_FIELD_NUMBER: _ClassVar[int]
    pair: _containers.RepeatedCompositeFieldContainer[OpCompatibleMap.OpCompatiblePair]
    default_required_version: str
    def __init__(self, pair: _Optional[_Iterable[_Union[OpCompatibleMap.OpCompatiblePair, _Mapping]]] = ..., default_required_version: _Optional[str] = ...) -> None: ...

class ProgramDesc(_message.Message):
    __slots__ = ("blocks", "op_compatible_map", "version")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    OP_COMPATIBLE_MAP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockDesc]
    op_compatible_map: OpCompatibleMap
    version: Version
    def __init__(self, blocks: _Optional[_Iterable[_Union[BlockDesc, _Mapping]]] = ..., op_compatible_map: _Optional[_Union[OpCompatibleMap, _Mapping]] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...
