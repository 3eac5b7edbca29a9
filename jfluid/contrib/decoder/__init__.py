"""Decoders of translation models, for training and for beam search, around a cell that both share."""

from jfluid.contrib.decoder.beam_search import BeamSearchDecoder as BeamSearchDecoder
from jfluid.contrib.decoder.state_cell import InitState as InitState
from jfluid.contrib.decoder.state_cell import StateCell as StateCell
from jfluid.contrib.decoder.training import TrainingDecoder as TrainingDecoder

__all__ = ["BeamSearchDecoder", "InitState", "StateCell", "TrainingDecoder"]
