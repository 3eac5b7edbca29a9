"""What users call: functions that append operators. Nothing is computed here."""
from jfluid.layers import math_op_patch
from jfluid.layers.activation import *  # noqa: F403
from jfluid.layers.control_flow import *  # noqa: F403
from jfluid.layers.conv import *  # noqa: F403
from jfluid.layers.distributions import *  # noqa: F403
from jfluid.layers.embedding import *  # noqa: F403
from jfluid.layers.host import *  # noqa: F403
from jfluid.layers.indexing import *  # noqa: F403
from jfluid.layers.io import *  # noqa: F403
from jfluid.layers.learning_rate_scheduler import *  # noqa: F403
from jfluid.layers.logic import *  # noqa: F403
from jfluid.layers.loss import *  # noqa: F403
from jfluid.layers.math import *  # noqa: F403
from jfluid.layers.metric_op import *  # noqa: F403
from jfluid.layers.nn import *  # noqa: F403
from jfluid.layers.norm import *  # noqa: F403
from jfluid.layers.pool import *  # noqa: F403
from jfluid.layers.random import *  # noqa: F403
from jfluid.layers.shape import *  # noqa: F403
from jfluid.layers.tensor import *  # noqa: F403

math_op_patch.install()
