"""What old scripts expect around Fluid: the package `paddle`, and NumPy's names of their time."""
