"""Write tests/golden/retrieval.json: losses of a tree-based retrieval model, and what it finds.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.retrieval
"""

import json
import os

import paddle.fluid as fluid

from tests.parity import retrieval

PATH = os.path.join(os.path.dirname(__file__), "..", "golden", "retrieval.json")
result = retrieval.run(fluid)
print(result["losses"], result["found"][0])
with open(PATH, "w") as f:
    json.dump(result, f, sort_keys=True)
    f.write("\n")
