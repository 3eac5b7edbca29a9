"""NumPy interpreter of traced steps: runs a step while XLA compiles it."""
