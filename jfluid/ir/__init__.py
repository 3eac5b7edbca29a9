"""What a program is. Nothing here imports JAX."""
