"""Parameter servers: tables of rows by id, larger than a trainer's memory, and the calls to the servers.

| module | holds |
|---|---|
| `validation`, `specs` | the definition of a table: width, initializer, optimizer, entry rule; checked plain data |
| `optimizers` | the definition of each optimizer: settings, update of a row, Fluid's operator |
| `update_rule` | a definition with settings, as tables and blocks use it; the learning rates of earlier steps |
| `kernels`, `row_initializers` | compiled loops: index and pages, initial values of rows |
| `shard`, `table_state`, `table`, `table_view` | `SparseTable`: int64 id -> row, in shards with a lock each; views |
| `dense` | `DenseBlock`: a slice of a dense parameter |
| `snapshot`, `snapshot_reassembly`, `reshard` | files of a consistent view; variables from the pieces of all servers |
| `ps.proto`, `wire`, `zero_copy` | messages, and arrays in messages |
| `service`, `server` | the calls on a server, and the process |
| `client`, `server_connections`, `connection` | calls of a trainer: to all servers, to one with retries |
| `transport`, `grpc_transport`, `socket_channels` | how a call reaches a server |
| `served_streams` | streams on a server |
| `directory`, `sharded_pull`, `sharded_push` | of a client: owners of rows and blocks; pulls and pushes of all |
| `sync_rounds` | the trainers of a job as one server sees them: membership, barriers, rounds of synchronous training |
| `replay_log` | acknowledged calls that a restored server may lack |
| `capacity` | memory for new rows, and the caps of tables and servers |

Importing this package costs nothing; its modules import numba and gRPC.
"""
