"""Parameter servers: tables of rows by id that are larger than a trainer's memory, and the calls that reach them.

| module | holds |
|---|---|
| `checked`, `specs` | what a table is: width, initializer, optimizer, entry rule; plain data, checked |
| `optimizers` | all that there is to know of each optimizer: its settings, its update of a row, Fluid's operator of it |
| `kernels`, `born` | compiled loops: index and pages, first values of rows |
| `shard`, `table`, `cut` | `SparseTable`: int64 id -> row, in shards with a lock each; a table as it was at one moment |
| `dense` | `DenseBlock`: a slice of a dense parameter |
| `snapshot` | files of one consistent cut |
| `ps.proto`, `wire`, `lifting`, `service`, `channel`, `client`, `server` | the calls |
| `directory`, `pulls` | of a client: which server has what; what a pull asks of each server |

Importing this package costs nothing; its modules import numba and gRPC.
"""
