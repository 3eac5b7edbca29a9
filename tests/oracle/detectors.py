"""Write tests/golden/detectors.json: the real Fluid's losses of small detectors, and what they
detect.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.detectors
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.detectors import MODELS, train_and_detect


def rounded(value):
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in sorted(value.items())}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float("%.7g" % value) if isinstance(value, float) else value


if __name__ == "__main__":
    found = {name: train_and_detect(fluid, model) for name, model in MODELS.items()}
    for name, result in found.items():
        print(name, result["losses"], result["detected"][1])
    path = os.path.join(os.path.dirname(__file__), "..", "golden", "detectors.json")
    with open(path, "w") as f:
        lines = [
            "%s: {\n%s\n}"
            % (
                json.dumps(name),
                ",\n".join("%s: %s" % (json.dumps(k), json.dumps(rounded(v))) for k, v in r.items()),
            )
            for name, r in found.items()
        ]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
