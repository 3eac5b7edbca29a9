"""Private and deep names of Fluid that scripts import, by the module of Fluid that has them.

`jfluid.surface` finds them under Fluid's paths.
"""
