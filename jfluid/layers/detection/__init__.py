"""Layers of object detection; a file for each family, as in `jfluid.ops.detection`."""

from jfluid.layers.detection.boxes import *
from jfluid.layers.detection.evaluation import *
from jfluid.layers.detection.nms import *
from jfluid.layers.detection.proposals import *
from jfluid.layers.detection.rois import *
from jfluid.layers.detection.ssd import *
from jfluid.layers.detection.yolo import *
