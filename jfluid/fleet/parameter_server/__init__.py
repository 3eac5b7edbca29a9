"""The fleet of jobs with parameter servers.

| module | holds |
|---|---|
| `runtime_config` | TrainerRuntimeConfig: how a trainer's communicator works |
| `strategies` | SyncStrategy, HalfAsyncStrategy, AsyncStrategy, GeoStrategy, and the factory that makes them |
| `fleet` | DistributedTranspiler, its instance `fleet`, and TranspilerOptimizer |
"""
