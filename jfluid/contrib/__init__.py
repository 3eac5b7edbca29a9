"""Extensions of Fluid: mixed precision, quantization, statistics of programs and more.

Optimizers with decoupled weight decay, decoders and further layers belong here, too. Names that are not
implemented raise UnsupportedError when they are called.
"""

from jfluid.contrib import decoder, layers, mixed_precision, quantize, statistics, weight_decay
from jfluid.contrib.decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder
from jfluid.contrib.quantize import QuantizeTranspiler
from jfluid.contrib.statistics import memory_usage, op_freq_statistic, summary
from jfluid.contrib.weight_decay import extend_with_decoupled_weight_decay
