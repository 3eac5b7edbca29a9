"""Write tests/golden/parity.json: losses and norms of persistables of the programs under
tests/parity, and decoded sentences.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.parity [names of programs]
"""

import json
import os
import sys

import paddle.fluid as fluid

from tests.parity import programs, ragged
from tests.parity.translation import translation, translation_decode, translation_decode_trained

PATH = os.path.join(os.path.dirname(__file__), "..", "golden", "parity.json")
with open(PATH) as f:
    result = json.load(f)
for build in programs.PROGRAMS + ragged.PROGRAMS:
    if not sys.argv[1:] or build.__name__ in sys.argv[1:]:
        losses, norms = programs.train(fluid, build)
        result[build.__name__] = {"losses": losses, "persistables": norms}
        print(build.__name__, losses[0], losses[-1])
for build, trained in ((translation_decode, None), (translation_decode_trained, translation)):
    if not sys.argv[1:] or build.__name__ in sys.argv[1:]:
        result[build.__name__] = programs.infer(fluid, build, trained)
        print(build.__name__, result[build.__name__][0])
with open(PATH, "w") as f:
    f.write("{\n" + ",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())) + "\n}\n")
