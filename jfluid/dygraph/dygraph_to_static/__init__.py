"""Functions turned into Programs: conditions, loops and jumps that tensors decide become operators."""

from jfluid.dygraph.dygraph_to_static.program_translator import *
