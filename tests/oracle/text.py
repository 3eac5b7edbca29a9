"""Write tests/golden/text_programs.json: losses and norms of persistables of the programs of
tests/parity/text.py, and what its decoders find.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.text
"""

import json
import os

import paddle.fluid as fluid

from tests.parity import text
from tests.parity.programs import infer, train

result = {}
for build in text.PROGRAMS:
    losses, norms = train(fluid, build, steps=text.STEPS)
    result[build.__name__] = {"losses": losses, "persistables": norms}
    print(build.__name__, losses)
for build in text.INFERENCE:
    result[build.__name__] = infer(fluid, build)
    print(build.__name__, str(result[build.__name__])[:300])
PATH = os.path.join(os.path.dirname(__file__), "..", "golden", "text_programs.json")
with open(PATH, "w") as f:
    f.write("{\n" + ",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())) + "\n}\n")
