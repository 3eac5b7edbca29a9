"""Write tests/golden/optimizer.json: losses, final values and operators of the cases in
tests/optimizer_cases.py.

Run with the real Fluid's interpreter:  python tests/oracle/optimizer.py
"""

import json
import os
import sys

import paddle.fluid as fluid

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, ".."))
import optimizer_cases as cases  # noqa: E402


def short(value):
    """Numbers with the nine digits that tell a 32-bit float."""
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(v) for v in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


result = {"optimizers": {}, "schedules": {}, "averages": {}}
for name, make in cases.optimizers(fluid).items():
    main, startup, loss, optimizer = cases.build(fluid, name, make)
    losses, scope = cases.train(fluid, main, startup, loss)
    result["optimizers"][name] = {
        "losses": losses,
        "state": cases.state(main, scope),
        "names": optimizer.get_opti_var_name_list(),
        "operators": cases.describe(main, 2 | 16),
    }
for name, make in cases.schedules(fluid).items():
    main, startup, rate = cases.schedule_program(fluid, make)
    result["schedules"][name] = {
        "name": rate.name,
        "rates": cases.rates(fluid, main, startup, rate),
        "operators": cases.describe(main, 16),
    }
for name, make in cases.averages(fluid).items():
    result["averages"][name] = cases.average(fluid, make)
main, startup, loss, _ = cases.build(fluid, "lookahead", cases.lookahead(fluid))
losses, scope = cases.train(fluid, main, startup, loss)
result["lookahead"] = {"losses": losses, "state": cases.state(main, scope)}
with open(os.path.join(here, "..", "golden", "optimizer.json"), "w") as f:
    json.dump(short(result), f, sort_keys=True, separators=(",", ":"))
    f.write("\n")
