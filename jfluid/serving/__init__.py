"""Saved models over HTTP: requests of several clients run as one batch (`batching`), behind a small
application (`application`) that `jfluid serve` starts.
"""
