"""Programs of a few operators in each role, one attribute of which is anything."""

from collections.abc import Callable
from typing import Any

from jfluid.ir import framework_pb2 as pb

INT, FLOAT, STRING = pb.INT, pb.FLOAT, pb.STRING
Setter = Callable[[Any], None]


def _set(kind: int, field: str, value: Any) -> Setter:
    def apply(attr: Any) -> None:
        attr.type = kind
        if isinstance(value, list):
            getattr(attr, field).extend(value)
        else:
            setattr(attr, field, value)

    return apply


def blank(kind: int) -> Setter:
    """An attribute of a kind whose value is left out."""

    def apply(attr: Any) -> None:
        attr.type = kind

    return apply


VALUES: dict[str, Setter] = (
    {
        f"{name} {value!r}": _set(kind, field, value)
        for name, kind, field, values in (
            ("int", pb.INT, "i", [0, 1, -1, 7, 2**31 - 1, -(2**31)]),
            ("float", pb.FLOAT, "f", [0.5, 3.0, -1e38, float("nan"), float("inf")]),
            ("text", pb.STRING, "s", ["", "1", "\x1b[2J", "max", "x" * 300]),
            ("flag", pb.BOOLEAN, "b", [True, False]),
            ("long", pb.LONG, "l", [2**62, 2**63 - 1, -(2**63), 3]),
            ("ints", pb.INTS, "ints", [[], [1], [-1, 0], [2**31 - 1] * 3]),
            ("longs", pb.LONGS, "longs", [[], [2**63 - 1, -(2**63)], [2, 2]]),
            ("floats", pb.FLOATS, "floats", [[], [float("nan")], [1e38, -0.5]]),
            ("texts", pb.STRINGS, "strings", [[], ["x", "nothing"], ["\u202e"]]),
            ("flags", pb.BOOLEANS, "bools", [[], [True, False]]),
            ("block", pb.BLOCK, "block_idx", [1, 2]),
            ("blocks", pb.BLOCKS, "blocks_idx", [[], [1, 1], [2, 1]]),
        )
        for value in values
    }
    | {f"nothing of {name}": blank(kind) for name, kind in pb.AttrType.items()}
)

# Each role: slots of an operator of the global block, and the attributes that it is to have.
_ROLES: dict[str, tuple[dict[str, list[str]], dict[str, list[str]], dict[str, Setter]]] = {
    "feed": ({"X": ["feed"]}, {"Out": ["x"]}, {"col": _set(INT, "i", 0)}),
    "fetch": ({"X": ["y"]}, {"Out": ["fetch"]}, {"col": _set(INT, "i", 0)}),
    "scale": ({"X": ["x"]}, {"Out": ["y"]}, {"scale": _set(FLOAT, "f", 2.0)}),
    "dropout": ({"X": ["x"]}, {"Out": ["y"], "Mask": ["m"]}, {"seed": _set(INT, "i", 1)}),
    "cast": (
        {"X": ["x"]},
        {"Out": ["y"]},
        {"in_dtype": _set(INT, "i", 5), "out_dtype": _set(INT, "i", 5)},
    ),
    "fill_constant": (
        {},
        {"Out": ["y"]},
        {"shape": _set(pb.LONGS, "longs", [2, 4]), "dtype": _set(INT, "i", 5)},
    ),
    "gaussian_random": (
        {},
        {"Out": ["y"]},
        {"shape": _set(pb.LONGS, "longs", [2, 4]), "dtype": _set(INT, "i", 5)},
    ),
    "assign_value": (
        {},
        {"Out": ["y"]},
        {
            "shape": _set(pb.INTS, "ints", [2]),
            "dtype": _set(INT, "i", 5),
            "fp32_values": _set(pb.FLOATS, "floats", [1.0, 2.0]),
        },
    ),
    "reshape2": (
        {"X": ["x"]},
        {"Out": ["y"], "XShape": ["m"]},
        {"shape": _set(pb.INTS, "ints", [4, 2])},
    ),
    "print": (
        {"In": ["x"]},
        {"Out": ["y"]},
        {
            "first_n": _set(INT, "i", 1),
            "message": _set(STRING, "s", "m"),
            "summarize": _set(INT, "i", 1),
        },
    ),
    "while": (
        {"X": ["x"], "Condition": ["c"]},
        {"Out": ["y"], "StepScopes": ["m"]},
        {"sub_block": _set(pb.BLOCK, "block_idx", 1)},
    ),
    "conditional_block": (
        {"Input": ["x"], "Cond": ["c"]},
        {"Out": ["y"], "Scope": ["m"]},
        {
            "sub_block": _set(pb.BLOCK, "block_idx", 1),
            "is_scalar_condition": _set(pb.BOOLEAN, "b", True),
        },
    ),
    "recurrent": (
        {"inputs": ["x"], "initial_states": [], "parameters": []},
        {"outputs": ["y"], "step_scopes": ["m"]},
        {
            "sub_block": _set(pb.BLOCK, "block_idx", 1),
            "states": _set(pb.STRINGS, "strings", []),
            "ex_states": _set(pb.STRINGS, "strings", []),
        },
    ),
    "relu_grad": (
        {"X": ["x"], "Out": ["x"], "Out@GRAD": ["x"]},
        {"X@GRAD": ["y"]},
        {"op_role": _set(INT, "i", 1)},
    ),
}
ROLES = tuple(_ROLES)
_ROLES["isnan"] = {"X": ["x"]}, {"Out": ["c"]}, {}  # what loops and conditions go by


def attributes(role: str) -> tuple[str, ...]:
    """The attributes of a role that are worth changing."""
    return (*_ROLES[role][2], "op_role", "op_callstack", "op_namescope", "op_role_var", "sub_block")


def program(role: str, attribute: str, value: str) -> bytes:
    """A model that is fed `x` [-1, 4] and gives `y`, by one operator of a role; one of its attributes has
    one of `VALUES`."""
    desc = pb.ProgramDesc()
    blocks = [desc.blocks.add(idx=i, parent_idx=i - 1) for i in range(3)]
    for name, kind, dtype, shape in (
        ("feed", pb.VarType.FEED_MINIBATCH, 0, ()),
        ("fetch", pb.VarType.FETCH_LIST, 0, ()),
        ("x", pb.VarType.LOD_TENSOR, pb.VarType.FP32, (-1, 4)),
        ("y", pb.VarType.LOD_TENSOR, pb.VarType.FP32, (-1, 4)),
        ("m", pb.VarType.LOD_TENSOR, pb.VarType.FP32, (-1, 4)),
        ("c", pb.VarType.LOD_TENSOR, pb.VarType.BOOL, (1,)),
    ):
        var = blocks[0].vars.add(name=name, persistable=kind != pb.VarType.LOD_TENSOR)
        var.type.type = kind
        if shape:
            var.type.lod_tensor.tensor.data_type = dtype
            var.type.lod_tensor.tensor.dims.extend(shape)
    for type_ in ("feed", "isnan", "scale" if role in ("feed", "fetch") else role, "fetch"):
        ins, outs, given = _ROLES[type_]
        op = blocks[0].ops.add(type=type_)
        for slots, named in ((op.inputs, ins), (op.outputs, outs)):
            for slot, names in named.items():
                slots.add(parameter=slot, arguments=names)
        changed = {attribute: VALUES[value]} if type_ == role else {}
        for name, put in (given | changed).items():
            put(op.attrs.add(name=name, type=pb.INT))
    inner = blocks[1].ops.add(type="scale")
    inner.inputs.add(parameter="X", arguments=["x"])
    inner.outputs.add(parameter="Out", arguments=["y"])
    return desc.SerializeToString()
