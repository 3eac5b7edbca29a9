"""Environment of old scripts: the package `paddle`, and names that Python and NumPy had in 2020."""
