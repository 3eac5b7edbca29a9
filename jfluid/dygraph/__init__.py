"""Imperative mode: a call runs its operator, and layers hold parameters."""

from jfluid.dygraph.backward_strategy import *
from jfluid.dygraph.base import *
from jfluid.dygraph.checkpoint import *
from jfluid.dygraph.container import *
from jfluid.dygraph.dygraph_to_static import ProgramTranslator as ProgramTranslator
from jfluid.dygraph.jit import *
from jfluid.dygraph.layers import *
from jfluid.dygraph.learning_rate_scheduler import *
from jfluid.dygraph.nn import *
from jfluid.dygraph.parallel import *
from jfluid.dygraph.static_runner import *
