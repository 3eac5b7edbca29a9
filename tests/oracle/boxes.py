"""Write tests/golden/boxes.json: what the real Fluid gives for the operators of
tests/parity/boxes.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.boxes
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.boxes import CASES
from tests.parity.ops import run

PATH = os.path.join(os.path.dirname(__file__), "..", "golden", "boxes.json")


def main():
    with open(PATH, "w") as f:
        lines = []
        for case in CASES:
            found = run(fluid, case)
            found = {n: [[float("%.7g" % x) for x in v], s, lod] for n, (v, s, lod) in found.items()}
            lines.append("%s: %s" % (json.dumps(case[0]), json.dumps(found)))
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
    print(len(CASES), "cases")


if __name__ == "__main__":
    main()
