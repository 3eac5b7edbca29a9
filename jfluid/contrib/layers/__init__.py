"""Layers of Fluid's `fluid.contrib.layers`; a file for each family."""

from jfluid.contrib.layers.click import *
from jfluid.contrib.layers.detection import *
from jfluid.contrib.layers.fused import *
from jfluid.contrib.layers.metric_op import *
from jfluid.contrib.layers.recurrent import *
from jfluid.contrib.layers.retrieval import *
from jfluid.contrib.layers.text_matching import *
from jfluid.contrib.layers.tree import *
from jfluid.layers.sequence_lod import sequence_topk_avg_pooling as sequence_topk_avg_pooling
