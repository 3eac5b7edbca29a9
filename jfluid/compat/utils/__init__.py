"""Curves and images for scripts: Fluid's `paddle.utils`."""

from jfluid.compat.utils import image_util, plot, plotcurve, preprocess_img, preprocess_util
from jfluid.compat.utils.plot import Ploter

__all__ = ["Ploter", "image_util", "plot", "plotcurve", "preprocess_img", "preprocess_util"]
