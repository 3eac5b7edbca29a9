"""Layers: functions that append operators to the default main program.

Layers compute nothing.

Shapes in docstrings are the shapes of the program's variables; -1 is a dimension that is known when the
program runs. "Rows with a LoD" are the rows of all sequences, concatenated in one tensor [rows, ...] with
the offsets of the sequences. A parameter `name` names the result, or is the prefix of its parameters'
names; None generates a name.

While a program is built, every layer raises TypeError for an argument of a type or dtype that Fluid
refuses (`argument_types`), and for a value in place of a Variable. For wrong shapes, dtypes or attributes
it raises a ProgramError, such as ShapeError or AttributeTypeError, that names the operator and the user's
line.
"""

from jfluid.layers import argument_types, math_op_patch
from jfluid.layers.activation import *
from jfluid.layers.arrays import *
from jfluid.layers.beam_search import *
from jfluid.layers.bilinear import *
from jfluid.layers.cells import *
from jfluid.layers.click import *
from jfluid.layers.control_flow import *
from jfluid.layers.conv import *
from jfluid.layers.creation import *
from jfluid.layers.crf import *
from jfluid.layers.ctc import *
from jfluid.layers.decode import *
from jfluid.layers.decode_helper import *
from jfluid.layers.deformable import *
from jfluid.layers.detection import *
from jfluid.layers.distributions import *
from jfluid.layers.dynamic_rnn import *
from jfluid.layers.embedding import *
from jfluid.layers.grid import *
from jfluid.layers.host import *
from jfluid.layers.if_else import *
from jfluid.layers.indexing import *
from jfluid.layers.instag import *
from jfluid.layers.io import *
from jfluid.layers.learning_rate_scheduler import *
from jfluid.layers.logic import *
from jfluid.layers.loss import *
from jfluid.layers.math import *
from jfluid.layers.metric_op import *
from jfluid.layers.nn import *
from jfluid.layers.norm import *
from jfluid.layers.patches import *
from jfluid.layers.pool import *
from jfluid.layers.random import *
from jfluid.layers.recurrent import *
from jfluid.layers.resize import *
from jfluid.layers.sampling import *
from jfluid.layers.sequence_lod import *
from jfluid.layers.shape import *
from jfluid.layers.static_rnn import *
from jfluid.layers.tensor import *

math_op_patch.install()
argument_types.install(globals())
