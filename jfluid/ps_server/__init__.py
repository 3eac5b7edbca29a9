"""Parameter servers: tables of rows by id that are larger than a trainer's memory, and the calls that reach them.

| module | holds |
|---|---|
| `validation`, `specs` | what a table is: width, initializer, optimizer, entry rule; plain data, checked |
| `optimizers` | the definition of each optimizer: its settings, its update of a row, Fluid's operator of it |
| `update_rule` | a definition with settings, as tables and blocks use it; the learning rates of earlier steps |
| `kernels`, `row_initializers` | compiled loops: index and pages, initial values of rows |
| `shard`, `table_state`, `table`, `table_view` | `SparseTable`: int64 id -> row, in shards with a lock each; a view of it |
| `dense` | `DenseBlock`: a slice of a dense parameter |
| `snapshot` | files of a consistent view of a server |
| `ps.proto`, `wire`, `zero_copy`, `service`, `connection`, `server_connections`, `client`, `server` | the calls |
| `directory`, `sharded_pull` | of a client: the owners of rows and blocks; a pull from all servers |
| `sync_rounds` | the trainers of a job as one server sees them: membership, barriers, rounds of synchronous training |
| `shared_memory` | large messages between processes of one machine |
| `replay_log` | acknowledged calls that a restored server may lack |
| `capacity` | memory for new rows, and the caps of tables and servers |

Importing this package costs nothing; its modules import numba and gRPC.
"""
