"""What DistributeTranspiler makes of a program for parameter servers, for any engine that offers
the Fluid API.

`run` tells the structure of a case, one line of text for each operator and variable: of the
trainers' program (the types of all operators, and those that the transpiler made), of its startup
program, of each server's program and startup program. Python 3.7 syntax.
"""

import json
import re

from tests.parity import programs

ENDPOINTS = ("127.0.0.1:6170", "127.0.0.1:6171")
ATTRS = (
    "epmap",
    "sections",
    "num",
    "send_varnames",
    "merge_add",
    "use_send_handler",
    "recv_varnames",
    "varnames",
    "with_barrier",
    "do_not_run",
    "endpoints",
    "half_async",
    "Fanin",
    "checkpint_block_id",
    "dc_asgd",
    "distributed_mode",
    "endpoint",
    "grad_to_block_id",
    "lr_decay_block_id",
    "prefetch_var_name_to_block_id",
    "pserver_id",
    "sparse_grad_to_param",
    "height_sections",
    "lookup_table_version",
    "padding_idx",
    "table_names",
    "trainer_id",
    "shape",
    "scale",
    "axis",
    "op_role",
    "dtype",
)
INSERTED = (
    "send",
    "recv",
    "send_barrier",
    "fetch_barrier",
    "split_byref",
    "split_selected_rows",
    "distributed_lookup_table",
    "fake_init",
)
SETS = ("grad_to_block_id", "sparse_grad_to_param")  # Fluid's come in any order

STRATEGIES = {
    "sync": {"sync_mode": True},
    "half_async": {"sync_mode": False},
    "async": {"sync_mode": False, "runtime_split_send_recv": True},
    "communicator_half_async": {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "half_async": True,
    },
    "communicator_sync": {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "half_async": True,
        "completely_not_async": True,
    },
    "dc_asgd": {"sync_mode": False, "enable_dc_asgd": True},
    "geo": {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "geo_sgd_mode": True,
        "geo_sgd_need_push_nums": 7,
    },
}
# Program, strategy, what is cut ("cut": small blocks; "big": nothing is that large; "whole":
# slice_var_up is off), trainers.
CASES = [
    (name, strategy, cut, 2)
    for name, strategy, cut in (
        [("fit_a_line", s, "cut") for s in STRATEGIES]
        + [("word2vec", s, "cut") for s in STRATEGIES if s != "dc_asgd"]
        + [(name, "sync", cut) for name in ("fit_a_line", "word2vec", "digits_mlp") for cut in ("big", "whole")]
        + [(name, s, "cut") for name in ("digits_mlp", "ctr_dnn") for s in ("sync", "async")]
        + [("ctr_dnn", s, "big") for s in STRATEGIES if s not in ("sync", "geo")]
        + [
            ("digits_conv", "sync", "cut"),
            ("resnet", "async", "whole"),
            ("ftrl", "half_async", "cut"),
            ("decayed_sparse", "sync", "cut"),
            ("adamax", "async", "cut"),
        ]
    )
]
CASES += [("ctr_dnn", "half_async", "big", 1)]


def decayed_sparse(fluid):
    """Rows that are decayed, a rate of its own for one parameter, and ids that an operator
    computes.
    """
    ids = fluid.data("ids", [None, 1], dtype="int64")
    computed = fluid.layers.cast(fluid.layers.scale(fluid.layers.cast(ids, "float32"), 0.5), "int64")
    first = fluid.layers.embedding(ids, [20, 4], is_sparse=True, param_attr="table")
    second = fluid.layers.embedding(computed, [20, 4], is_sparse=True, param_attr="table")
    fast = fluid.ParamAttr(name="fast", learning_rate=2.0)
    loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.concat([first, second], axis=1), 3, param_attr=fast))
    fluid.optimizer.SGD(0.1).minimize(loss)


def adamax(fluid):
    """An optimizer that needs operators beyond its own."""
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 6]), 4))
    fluid.optimizer.Adamax(0.1, regularization=fluid.regularizer.L1Decay(0.1)).minimize(loss)


def ftrl(fluid):
    """Three parameters, the state of two of which is cut too."""
    hidden = fluid.layers.fc(fluid.data("x", [None, 6]), 5, bias_attr=False)
    loss = fluid.layers.mean(fluid.layers.fc(hidden, 4))
    fluid.optimizer.Ftrl(learning_rate=0.05, l1=1e-3, l2=1e-3).minimize(loss)


OWN = {"ftrl": ftrl, "decayed_sparse": decayed_sparse, "adamax": adamax}


def key(case):
    return "-".join(map(str, case))


def _transpile(fluid, case):
    name, strategy, cut, trainers = case
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        (OWN.get(name) or getattr(programs, name))(fluid)
        config = fluid.DistributeTranspilerConfig()
        for field, value in STRATEGIES[strategy].items():
            setattr(config, field, value)
        config.slice_var_up = cut != "whole"
        # Fluid has a class for it
        kind = getattr(fluid.transpiler, "GeoSgdTranspiler", None) if config.geo_sgd_mode else None
        transpiler = (kind or fluid.DistributeTranspiler)(config)
        if cut == "cut":
            # smaller than a new transpiler accepts, as are these programs
            transpiler.config.min_block_size = 10
        transpiler.transpile(
            0,
            program=main,
            pservers=",".join(ENDPOINTS),
            trainers=trainers,
            sync_mode=config.sync_mode,
            startup_program=startup,
        )
    return transpiler, startup


def run(fluid, case):
    """The structure of all programs of a case. Fluid cannot make a server's program after the
    trainers'.
    """
    transpiler, _ = _transpile(fluid, case)
    told = {}
    for endpoint in ENDPOINTS:
        server, starts = transpiler.get_pserver_programs(endpoint)
        told[endpoint] = structure(server)
        told[endpoint + " startup"] = structure(starts)
    transpiler, startup = _transpile(fluid, case)
    trainer = transpiler.get_trainer_program(wait_port=False)
    types = " ".join(op.type for op in trainer.global_block().ops)
    # Fluid's name breaks its own rule
    told["types"] = types.replace("cross_entropy_grad2", "cross_entropy2_grad")
    # where Fluid numbers no server, names no endpoint and lets sparse tables start apart
    if case[1] == "geo":
        for endpoint in ENDPOINTS:
            lines = told[endpoint]["operators"]
            told[endpoint]["operators"] = [re.sub('"pserver_id": -?[0-9]+, ', "", line) for line in lines]
        (send,) = [op for op in trainer.global_block().ops if op.type == "send"]
        told["touched"] = [[str(n) for n in names] for names in (send.input("X"), send.attr("send_varnames"))]
        return told
    told["trainer"] = structure(trainer, INSERTED)
    told["startup"] = structure(startup)
    return told


def structure(program, only=()):
    """{"operators": [a line for each], "variables": [a line for each that one of them names]} of a
    program.
    """
    names, lines, numbers = set(), [], {}
    for block in program.blocks:
        for op in block.ops:
            if not only or op.type in only or int(op.attr("op_role")) == 8:
                lines.append("%d %s" % (block.idx, _op(op, numbers)))
                names.update(op.input_arg_names + op.output_arg_names)
    found = {str(v.name): _variable(v) for block in program.blocks for v in block.vars.values() if v.name in names}
    variables = sorted("%s %s" % (_plain(n, numbers), v) for n, v in found.items())
    return {"operators": lines, "variables": variables}


def _plain(name, numbers):
    """The name, with a number by order of appearance where each engine numbers by itself."""
    for prefix in ("__control_var@", "tmp_dc_output_"):
        if name.startswith(prefix):
            return "%s%d" % (prefix, numbers.setdefault(name, len(numbers)))
    return str(name)


def _op(op, numbers):
    slots = [
        {str(s): [_plain(n, numbers) for n in of(s)] for s in names if of(s)}
        for names, of in ((op.input_names, op.input), (op.output_names, op.output))
    ]
    attrs = {a: _value(a, op.attr(a)) for a in ATTRS if op.has_attr(a)}
    return "%s %s" % (
        op.type,
        " ".join(json.dumps(part, sort_keys=True) for part in slots + [attrs]),
    )


def _value(attr, value):
    if isinstance(value, (list, tuple)):
        value = [v if isinstance(v, int) else str(v) for v in value]
        return sorted(value) if attr in SETS else value
    return float("%.6g" % value) if isinstance(value, float) else value


def _variable(var):
    if var.name.startswith("__control_var@") or int(var.type) not in (7, 8):
        return str(int(var.type))
    return "%d %s %d" % (int(var.type), list(var.shape), int(var.dtype))
