"""What the transpiler makes of programs that train together, for any engine that offers the Fluid
API.

`run` tells the operators of a case: types, and of the transpiler's own also inputs, outputs and the
attributes that matter.
"""

ENDPOINTS = "127.0.0.1:6170,127.0.0.1:6171,127.0.0.1:6172"
ATTRS = (
    "scale",
    "ring_id",
    "root",
    "rank",
    "nranks",
    "endpoint",
    "other_endpoints",
    "op_role",
    "trainers",
    "trainer_id",
    "nccl_comm_num",
    "use_hierarchical_allreduce",
    "hierarchical_allreduce_inter_nranks",
)

# Operators of the transpiler's that others make too.
INSERTED = ("scale", "elementwise_sub", "assign", "gen_nccl_id")


def _programs(fluid, optimizer):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 4])
        y = fluid.data("y", [None, 1])
        hidden = fluid.layers.fc(x, 8, act="relu")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
        optimizer(fluid).minimize(loss)
    return main, startup


OPTIMIZERS = {
    "sgd": lambda fluid: fluid.optimizer.SGD(0.1),
    "momentum": lambda fluid: fluid.optimizer.Momentum(0.1, 0.9),
    "decayed": lambda fluid: fluid.optimizer.Adam(
        fluid.layers.exponential_decay(0.1, 10, 0.9), regularization=fluid.regularizer.L2Decay(1e-4)
    ),
    "clipped": lambda fluid: fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0)),
}


def _config(fluid, **fields):
    config = fluid.DistributeTranspilerConfig()
    config.wait_port = False
    for name, value in fields.items():
        setattr(config, name, value)
    return config


CASES = {
    f"{mode} {optimizer} {rings}": (
        optimizer,
        {"mode": "collective", "collective_mode": mode, "nccl_comm_num": rings},
    )
    for mode in ("grad_allreduce", "local_sgd")
    for optimizer, rings in (("sgd", 1), ("momentum", 2), ("decayed", 3), ("clipped", 1))
}
CASES["nccl2"] = ("sgd", {"mode": "nccl2"})
CASES["nccl2 rings"] = ("sgd", {"mode": "nccl2", "nccl_comm_num": 2})


def _told(program):
    told = []
    for op in program.global_block().ops:
        if not op.type.startswith("c_") and op.type not in INSERTED:
            told.append(op.type)
            continue
        attrs = {a: op.attr(a) for a in ATTRS if op.has_attr(a)}
        told.append(
            [
                op.type,
                sorted(op.input_arg_names),
                sorted(op.output_arg_names),
                {
                    n: round(v, 6) if isinstance(v, float) else list(v) if isinstance(v, tuple) else v
                    for n, v in attrs.items()
                },
            ]
        )
    return told


def run(fluid, case):
    """The operators of the main and of the startup program, without those of the network."""
    optimizer, fields = CASES[case]
    main, startup = _programs(fluid, OPTIMIZERS[optimizer])
    before = len(startup.global_block().ops)
    with fluid.unique_name.guard():
        fluid.DistributeTranspiler(_config(fluid, **fields)).transpile(
            1,
            program=main,
            startup_program=startup,
            trainers=ENDPOINTS,
            current_endpoint=ENDPOINTS.split(",")[1],
        )
    return {
        "main": _told(main),
        "startup": _told(startup)[before:],
        "variables": sorted(v.name for v in startup.list_vars() if "NCCL" in v.name.upper() or "@" in v.name),
    }


def defaults(fluid):
    """The fields of a fresh config with their values, in the order of their names."""
    config = fluid.DistributeTranspilerConfig()
    return {n: getattr(config, n) for n in sorted(dir(config)) if not n.startswith("_") and n != "dispatcher"}
