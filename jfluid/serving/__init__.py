"""HTTP server of saved models.

`batching` runs requests of several clients as one batch, `application` has the routes that `jfluid serve` starts.
"""
