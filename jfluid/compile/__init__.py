"""From a program to XLA: `plan` (segments), `lower` (trace), `step` (compile and run)."""
