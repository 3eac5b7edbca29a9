"""Caches on disk: files that one process writes and later processes load."""
