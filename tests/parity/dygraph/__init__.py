"""Programs of imperative mode, written once for any engine that offers the Fluid API (Python 3.7
syntax). The engine is the module that the variable FLUID names, so that classes can be written at the top
of a module as in users' scripts, which the translation of their source needs.

Each program is a function that builds its layers and optimizers and returns a `Case`. Random layers are
left out: two engines draw different numbers.
"""
