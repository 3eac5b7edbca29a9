"""Write tests/golden/dygraph_optimizer.json: what the cases in tests/dygraph_optimizer_cases.py
give, and the files of a layer and its optimizer under tests/golden/dygraph.

Run with the real Fluid's interpreter:  python tests/oracle/dygraph_optimizer.py
"""

import json
import os
import sys

import paddle.fluid as fluid

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, ".."))
import dygraph_optimizer_cases as cases  # noqa: E402


def short(value):
    """Numbers with the nine digits that tell a 32-bit float."""
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(v) for v in value]
    return float("{:.9g}".format(float(value)))


golden = os.path.join(here, "..", "golden")
result = {
    "optimizers": {name: cases.result(fluid, name, make) for name, make in cases.optimizers(fluid).items()},
    "rates": cases.rates(fluid),
}
with fluid.dygraph.guard():
    net = cases.net_of(fluid)
    optimizer = cases.optimizers(fluid)["noam"](net.parameters())
    cases.train(fluid, net, optimizer, "noam", 2)
    fluid.save_dygraph(net.state_dict(), os.path.join(golden, "dygraph", "net"))
    fluid.save_dygraph(optimizer.state_dict(), os.path.join(golden, "dygraph", "net"))
    result["resumed"] = cases.train(fluid, net, optimizer, "noam", 2)
with open(os.path.join(golden, "dygraph_optimizer.json"), "w") as f:
    json.dump(short(result), f, sort_keys=True, separators=(",", ":"))
    f.write("\n")
