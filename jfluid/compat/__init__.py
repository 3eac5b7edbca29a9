"""What old scripts expect around Fluid: the package `paddle`, and names that Python and NumPy had in their time."""
