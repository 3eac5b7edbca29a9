"""What users call: functions that append operators. Nothing is computed here."""
from jfluid.layers.io import *  # noqa: F403
