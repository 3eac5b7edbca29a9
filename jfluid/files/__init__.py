"""Fluid's files: tensor streams, pickled states, and safe ways to write and read files.

`jfluid.io` is their public face.
"""
