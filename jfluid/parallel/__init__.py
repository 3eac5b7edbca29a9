"""Data parallelism: one step on several devices."""
