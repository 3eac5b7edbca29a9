"""Write tests/golden/dygraph.json: losses and norms of the state of the programs of imperative mode, and
under tests/golden/dygraph what they save halfway.

Run with the real Fluid's interpreter from the project's root:
FLUID=paddle.fluid python -m tests.oracle.dygraph [names of programs]
"""

import json
import os
import sys

import numpy as np

from tests.parity.dygraph import train

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "golden")
PATH = os.path.join(GOLDEN, "dygraph.json")
# What Fluid itself cannot translate: it has no gradient of a translated function's gradient, and one that is
# called twice before the first call's gradient has lost its values.
NOT_DECLARED = ("gradient_penalty", "gan")

result = {}
if os.path.exists(PATH):
    with open(PATH) as f:
        result = json.load(f)
for build in train.PROGRAMS:
    name = build.__name__
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    folder = os.path.join(GOLDEN, "dygraph", name)
    losses, state = train.train(build, folder=folder)
    resumed, resumed_state = train.resume(build, folder)
    result[name] = {"losses": losses, "state": state}
    # The schedule within a warm-up begins anew: its step is not in the files.
    if resumed != losses[train.SAVED_AT :]:
        result[name].update(resumed=resumed, resumed_state=resumed_state)
    if name not in NOT_DECLARED:
        declared, declared_state = train.train(build, train.declared)
        np.testing.assert_allclose(declared, losses, rtol=1e-5)
        assert set(declared_state) == set(state)
    print(name, losses[0], losses[-1], "resumed" in result[name])
with open(PATH, "w") as f:
    f.write("{\n" + ",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())) + "\n}\n")
