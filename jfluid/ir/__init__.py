"""What a program is: blocks, operators, variables, gradients, files. Nothing here imports JAX."""
