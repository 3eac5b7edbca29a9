"""Figures of a server for Prometheus, by model and version."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class ServingMetrics:
    """Counters and histograms of all models of a server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = ["model", "version"]
        self.requests = Counter("jfluid_requests", "requests by status", [*of, "status"], registry=self.registry)
        self.seconds = Histogram("jfluid_request_seconds", "seconds of a request", of, registry=self.registry)
        self.rows = Histogram(
            "jfluid_batch_rows",
            "rows of the batches that ran",
            of,
            buckets=[1 << i for i in range(11)],
            registry=self.registry,
        )
        self.loaded = Gauge("jfluid_models_loaded", "1 for a version that answers", of, registry=self.registry)
        self.reloads = Counter(
            "jfluid_reloads", "reloads of a model by result", ["model", "result"], registry=self.registry
        )

    def text(self) -> bytes:
        """Return the figures in Prometheus's format."""
        return generate_latest(self.registry)
