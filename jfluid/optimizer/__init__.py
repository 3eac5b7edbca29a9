"""Optimizers: `fluid.optimizer.Adam(learning_rate=0.001).minimize(loss)`."""

from jfluid.optimizer.adaptive import (
    AdadeltaOptimizer,
    AdagradOptimizer,
    AdamaxOptimizer,
    AdamOptimizer,
    DecayedAdagradOptimizer,
    FtrlOptimizer,
    LambOptimizer,
    RMSPropOptimizer,
)
from jfluid.optimizer.averaging import ExponentialMovingAverage, ModelAverage
from jfluid.optimizer.base import Optimizer as Optimizer
from jfluid.optimizer.classic import DpsgdOptimizer, LarsMomentumOptimizer, MomentumOptimizer, SGDOptimizer
from jfluid.optimizer.dgc import DGCMomentumOptimizer
from jfluid.optimizer.pipeline import PipelineOptimizer
from jfluid.optimizer.wrappers import LookaheadOptimizer, RecomputeOptimizer

__all__ = [
    "SGD",
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "Adamax",
    "AdamaxOptimizer",
    "DGCMomentumOptimizer",
    "DecayedAdagrad",
    "DecayedAdagradOptimizer",
    "Dpsgd",
    "DpsgdOptimizer",
    "ExponentialMovingAverage",
    "Ftrl",
    "FtrlOptimizer",
    "Lamb",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "LookaheadOptimizer",
    "ModelAverage",
    "Momentum",
    "MomentumOptimizer",
    "PipelineOptimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "RecomputeOptimizer",
    "SGDOptimizer",
]

SGD = SGDOptimizer
Momentum = MomentumOptimizer
LarsMomentum = LarsMomentumOptimizer
Dpsgd = DpsgdOptimizer
Adagrad = AdagradOptimizer
Adam = AdamOptimizer
Adamax = AdamaxOptimizer
DecayedAdagrad = DecayedAdagradOptimizer
Adadelta = AdadeltaOptimizer
Ftrl = FtrlOptimizer
RMSProp = RMSPropOptimizer
Lamb = LambOptimizer
