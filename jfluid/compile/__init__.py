"""From a program to XLA: plan (cut), lower (trace), step (compile and cache)."""
