"""What DistributeTranspiler makes of a program for parameter servers, for any engine that offers the Fluid API.

`run` tells the structure of a case: operators with the names in their slots and the attributes that matter, and the shapes of
variables, of the trainer's program, of each server's program and of each server's startup program (Python 3.7 syntax).
"""
from tests.parity import programs

ENDPOINTS = ("127.0.0.1:6170", "127.0.0.1:6171")
ATTRS = ("epmap", "sections", "num", "send_varnames", "merge_add", "use_send_handler", "recv_varnames", "varnames",
         "with_barrier", "do_not_run", "endpoints", "half_async", "Fanin", "checkpint_block_id", "dc_asgd",
         "distributed_mode", "endpoint", "grad_to_block_id", "lr_decay_block_id", "prefetch_var_name_to_block_id",
         "pserver_id", "sparse_grad_to_param", "height_sections", "lookup_table_version", "padding_idx", "table_names",
         "trainer_id", "shape", "scale", "axis", "remote_prefetch", "is_distributed", "op_role")


def _value(value):
    if isinstance(value, (str, bool, int, float)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_value(v) for v in value]
    return str(value)


def _slots(op, names, of):
    return {n: [str(v) for v in of(n)] for n in names if of(n)}


def _op(op, attrs=ATTRS):
    told = {"type": op.type, "ins": _slots(op, op.input_names, op.input), "outs": _slots(op, op.output_names, op.output)}
    kept = {a: _value(op.attr(a)) for a in attrs if op.has_attr(a)}
    if op.has_attr("optimize_blocks"):
        kept["optimize_blocks"] = len(op.attr("optimize_blocks"))
    if kept:
        told["attrs"] = kept
    return told


def structure(program):
    """The program's blocks: operators, and shape, kind and persistence of each variable that one of them names."""
    return [{"parent": block.parent_idx, "ops": [_op(op) for op in block.ops],
             "vars": {str(v.name): [int(v.type)] + _shape(v) for v in block.vars.values()}} for block in program.blocks]


def _shape(var):
    try:
        return [list(var.shape), int(var.dtype), bool(var.persistable)]
    except Exception:
        return [bool(var.persistable)]
