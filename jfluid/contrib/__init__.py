"""Extensions of Fluid: mixed precision. The other names raise UnsupportedError when they are
called.
"""

from jfluid.contrib import mixed_precision
