"""Private and deep names of Fluid that scripts import, sorted by Fluid's modules.

`jfluid.surface` finds them under Fluid's paths.
"""
