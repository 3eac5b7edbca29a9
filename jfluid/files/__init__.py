"""Fluid's files: tensor streams, pickled states, and safe ways to write and read them.

`jfluid.io` is their public face.
"""
