"""Write tests/golden/parity.json: losses and persistable names of the programs under tests/parity, and decoded sentences.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.parity [names of programs]
"""
import json
import os
import sys

import paddle.fluid as fluid

from tests.parity import programs, ragged

PATH = os.path.join(os.path.dirname(__file__), "..", "golden", "parity.json")
with open(PATH) as f:
    result = json.load(f)
for build in programs.PROGRAMS + ragged.PROGRAMS:
    if not sys.argv[1:] or build.__name__ in sys.argv[1:]:
        losses, names = programs.train(fluid, build)
        result[build.__name__] = {"losses": losses, "persistables": names}
        print(build.__name__, losses[0], losses[-1])
if not sys.argv[1:] or "translation_decode" in sys.argv[1:]:
    result["translation_decode"] = programs.infer(fluid, ragged.translation_decode)
    print(result["translation_decode"][0])
with open(PATH, "w") as f:
    f.write("{\n" + ",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())) + "\n}\n")
