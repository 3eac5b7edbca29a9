"""Write tests/golden/collective.json: what the real Fluid gives for the cases of
tests/parity/collective.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.collective
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.collective import CASES, defaults, run

append = fluid.framework.Block.append_op


class Noted(object):
    """An operator of which a Fluid without GPUs has no definition: what its program would hold."""

    def __init__(self, type, outputs, attrs):
        self.type, self.attrs, self.input_arg_names = type, attrs, []
        self.output_arg_names = [v.name for v in outputs.values()]

    def has_attr(self, name):
        return name in self.attrs

    def attr(self, name):
        return self.attrs[name]


def noting_append(block, *args, **kwargs):
    if kwargs.get("type") in ("gen_nccl_id", "c_gen_nccl_id"):
        block.ops.append(Noted(kwargs["type"], kwargs["outputs"], dict(kwargs["attrs"], op_role=0)))
        return None
    return append(block, *args, **kwargs)


fluid.framework.Block.append_op = noting_append
results = {case: run(fluid, case) for case in CASES}
results["defaults"] = defaults(fluid)
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "collective.json"), "w") as f:
    lines = ["%s: %s" % (json.dumps(case), json.dumps(told, sort_keys=True)) for case, told in sorted(results.items())]
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
