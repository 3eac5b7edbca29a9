"""Settings of the host process: memory allocation, garbage collection and threads of XLA's CPU backend."""
