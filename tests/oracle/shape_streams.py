"""Write tests/golden/shape_streams.json: losses of streams whose batches change shape.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.shape_streams
"""

import json
import os

import paddle.fluid as fluid

from tests.parity import shape_streams

PATH = os.path.join(os.path.dirname(__file__), "..", "golden", "shape_streams.json")
result = {build.__name__: shape_streams.run(fluid, build) for build in shape_streams.STREAMS}
print(result)
with open(PATH, "w") as f:
    json.dump(result, f, sort_keys=True)
    f.write("\n")
