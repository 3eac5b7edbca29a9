"""Write tests/golden/op_schema.json: slots, attribute types and default values of Fluid's
operators.

Run with the real Fluid's interpreter:  python tests/oracle/op_schema.py
"""

import json
import os

import paddle.fluid as fluid
from paddle.fluid.framework import OpProtoHolder
from paddle.fluid.proto import framework_pb2 as pb

SKIP = {"op_role", "op_role_var", "op_namescope", "op_callstack", "op_device", "with_quant_attr"}


def marks(slot):
    return ("*" if slot.duplicable else "") + ("?" if slot.dispensable else "") + ("~" if slot.intermediate else "")


def defaults(proto):
    """Attribute defaults as the engine fills them in; empty when the operator needs an attribute we
    do not give.
    """
    block = fluid.Program().global_block()
    desc = block.desc.append_op()
    desc.set_type(proto.type)
    try:
        desc.check_attrs()
    except Exception:
        return {}
    out = {}
    for name in desc.attr_names():
        value = desc.attr(name)
        out[name] = value if isinstance(value, (bool, int, float, str, list)) else str(value)
    return out


result = {}
for type_, proto in sorted(OpProtoHolder.instance().op_proto_map.items()):
    filled = defaults(proto)
    result[type_] = {
        "ins": [s.name + marks(s) for s in proto.inputs],
        "outs": [s.name + marks(s) for s in proto.outputs],
        "attrs": {
            a.name: [pb.AttrType.Name(a.type)] + ([filled[a.name]] if a.name in filled else [])
            for a in proto.attrs
            if a.name not in SKIP
        },
    }
path = os.path.join(os.path.dirname(__file__), "..", "golden", "op_schema.json")
with open(path, "w") as f:
    lines = ["%s: %s" % (json.dumps(k), json.dumps(v, sort_keys=True)) for k, v in sorted(result.items())]
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
print(len(result))
