"""Write tests/golden/fleet_parameter_server.json: what the real Fluid gives for
tests/parity/fleet_parameter_server.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.fleet_parameter_server
"""

import json
import os
import sys
import types

import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.parameter_server import distribute_transpiler

from tests.parity.fleet_parameter_server import CASES, Communicator, run


class _Messages:
    """In the place of the library by which role makers reach each other."""

    def __init__(self, *arguments):
        """Reaches nobody."""

    def __getattr__(self, name):
        return lambda *arguments: 0


interfaces = types.ModuleType("netifaces")  # which GeneralRoleMaker asks for this host's address
interfaces.AF_INET, interfaces.gateways, interfaces.interfaces = 2, dict, lambda: ["lo"]
interfaces.ifaddresses = lambda name: {2: [{"addr": "127.0.0.1"}]}
sys.modules["netifaces"] = interfaces
fluid.core.Gloo = _Messages
distribute_transpiler.Communicator = Communicator
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "fleet_parameter_server.json"), "w") as f:
    lines = ["%s: %s" % (json.dumps(case), json.dumps(run(fluid, case), sort_keys=True)) for case in sorted(CASES)]
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
