"""Examples of datasets, and of what divides programs for jobs: a cell for each name of Fluid."""

import os

from jfluid.communicator import Communicator
from jfluid.contrib.reader import distributed_batch_reader
from jfluid.contrib.utils import (
    HDFSClient,
    convert_dist_to_sparse_program,
    load_persistables_for_increment,
    load_persistables_for_inference,
    multi_download,
    multi_upload,
)
from jfluid.incubate.fleet.base import fleet_base, role_maker
from jfluid.incubate.fleet.base.fleet_base import DistributedOptimizer
from jfluid.incubate.fleet.collective import (
    Collective,
    CollectiveOpBasedOptimizer,
    CollectiveOptimizer,
    DistFCConfig,
    DistributedStrategy,
    LambConfig,
    TrainStatus,
)
from jfluid.incubate.fleet.collective import fleet as collective_fleet
from jfluid.incubate.fleet.parameter_server.distribute_transpiler import distributed_strategy
from jfluid.incubate.fleet.parameter_server.distribute_transpiler import fleet as server_fleet
from jfluid.incubate.fleet.utils import hdfs
from jfluid.incubate.fleet.utils.fleet_util import FleetUtil

import jfluid as fluid
from jfluid.trainer_desc import DistMultiTrainer, MultiTrainer, PipelineTrainer, TrainerDesc
from jfluid.transpiler import distribute_transpiler
from jfluid.transpiler.distribute_transpiler import (
    DistributedMode,
    ServerRuntimeConfig,
    VarBlock,
    same_or_split_var,
    slice_variable,
)

exe = fluid.Executor(fluid.CPUPlace())
SERVERS = "127.0.0.1:6174,127.0.0.1:6175"


def click_model():
    """A model with a table of embeddings, and its loss."""
    ids = fluid.data("ids", [None, 1], "int64")
    label = fluid.data("label", [None, 1], "float32")
    rows = fluid.embedding(ids, size=[100, 4], is_sparse=True, param_attr=fluid.ParamAttr(name="table"))
    logits = fluid.layers.fc(rows, 1)
    return [ids, label], fluid.layers.mean(fluid.layers.square_error_cost(logits, label))


def lines(path="part-0"):
    """A file of records: the number of values of a slot, then the values."""
    with open(path, "w") as file:
        file.write("1 7 1 1.0\n1 8 1 0.0\n")
    return [path]


# %% fluid.DistributeTranspiler fluid.DistributeTranspilerConfig
variables, loss = click_model()
fluid.optimizer.SGD(0.1).minimize(loss)
config = fluid.DistributeTranspilerConfig()
config.slice_var_up = False
transpiler = fluid.DistributeTranspiler(config)
transpiler.transpile(trainer_id=0, pservers=SERVERS, trainers=2, sync_mode=False)
server = transpiler.get_pserver_program("127.0.0.1:6174")  # one process runs this
startup = transpiler.get_startup_program("127.0.0.1:6174", server)
trainer = transpiler.get_trainer_program(wait_port=False)  # and each trainer this; waits for servers by default
print([op.type for op in server.global_block().ops])  # ['listen_and_serv']

# %% fluid.transpiler.distribute_transpiler.DistributedMode
# %% fluid.transpiler.distribute_transpiler.ServerRuntimeConfig
config = fluid.DistributeTranspilerConfig()
config.sync_mode = False
config.runtime_split_send_recv = True
print(DistributedMode.SYNC, DistributedMode.ASYNC, ServerRuntimeConfig()._rpc_send_thread_num > 0)  # 0 1 True

# %% fluid.HashName fluid.RoundRobin fluid.transpiler.ps_dispatcher.PSDispatcher
variables = [fluid.data("v" + str(i), [2], "float32") for i in range(3)]
chosen = fluid.transpiler.RoundRobin(["a:1", "b:1"])
print(chosen.dispatch(variables), isinstance(chosen, fluid.transpiler.ps_dispatcher.PSDispatcher))
# ['a:1', 'b:1', 'a:1'] True
print(len(fluid.transpiler.HashName(["a:1", "b:1"]).dispatch(variables)))  # 3

# %% fluid.transpiler.distribute_transpiler.VarBlock fluid.transpiler.distribute_transpiler.slice_variable
table = fluid.layers.create_parameter([100, 200], "float32", name="table")
# name, block, elements
print(slice_variable([table], slice_count=2, min_block_size=1024))  # ['table:0:10000', 'table:1:10000']
print(str(VarBlock("table", 0, 10)))  # table:0:10

# %% fluid.transpiler.distribute_transpiler.same_or_split_var
print(same_or_split_var("table.block0", "table"), same_or_split_var("tables", "table"))  # True False

# %% fluid.transpiler.distribute_transpiler.log
distribute_transpiler.log("two servers")  # prints if PRINT_LOG is set
print(distribute_transpiler.PRINT_LOG)  # <fluid.transpiler.distribute_transpiler.PRINT_LOG: not in this release>

# %% fluid.communicator.Communicator
variables, loss = click_model()
fluid.optimizer.SGD(0.1).minimize(loss)
config = fluid.DistributeTranspilerConfig()
config.sync_mode = False
config.runtime_split_send_recv = True
transpiler = fluid.DistributeTranspiler(config)
transpiler.transpile(trainer_id=0, pservers=SERVERS, trainers=2, sync_mode=False)
communicator = Communicator(transpiler.get_trainer_program(wait_port=False), DistributedMode.ASYNC)
# until start(), which needs the servers
print(communicator.is_running())  # False

# %% fluid.contrib.convert_dist_to_sparse_program
variables, loss = click_model()
fluid.optimizer.SGD(0.1).minimize(loss)
transpiler = fluid.DistributeTranspiler()
transpiler.transpile(trainer_id=0, pservers=SERVERS, trainers=1)
local = convert_dist_to_sparse_program(transpiler.get_trainer_program(wait_port=False))
print("send" in [op.type for op in local.global_block().ops])  # False

# %% fluid.dataset.DatasetFactory fluid.dataset.QueueDataset
variables, loss = click_model()
dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
dataset.set_use_var(variables)
dataset.set_batch_size(2)
dataset.set_thread(1)
dataset.set_filelist(lines())
exe.run(fluid.default_startup_program())
exe.train_from_dataset(fluid.default_main_program(), dataset)
print(type(dataset).__name__)  # QueueDataset

# %% fluid.dataset.InMemoryDataset
variables, loss = click_model()
dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
dataset.set_use_var(variables)
dataset.set_batch_size(2)
dataset.set_filelist(lines())
dataset.load_into_memory()
dataset.local_shuffle()
print(dataset.get_memory_data_size())  # 2

# %% fluid.DataFeedDesc
with open("slots.prototxt", "w") as file:
    file.write(
        'name: "MultiSlotDataFeed" batch_size: 2 multi_slot_desc {'
        ' slots { name: "words" type: "uint64" is_dense: false is_used: false } }'
    )
desc = fluid.DataFeedDesc("slots.prototxt")
desc.set_batch_size(128)
desc.set_use_slots(["words"])
print("is_used: true" in desc.desc())  # True

# %% fluid.TrainerDesc fluid.MultiTrainer fluid.DistMultiTrainer fluid.PipelineTrainer
trainer = MultiTrainer()  # Fluid's executor makes one in train_from_dataset
print(
    [issubclass(kind, TrainerDesc) for kind in (MultiTrainer, DistMultiTrainer, PipelineTrainer)]
)  # [True, True, True]


# %% fluid.incubate.data_generator.MultiSlotDataGenerator
class Words(fluid.incubate.data_generator.MultiSlotDataGenerator):
    """Lines of a dataset from samples of integers."""

    def generate_sample(self, line):
        def read():
            yield [("words", [1, 2, 3]), ("label", [1])]

        return read


Words().run_from_memory()  # run_from_stdin() reads lines


# %% fluid.incubate.data_generator.MultiSlotStringDataGenerator
class Texts(fluid.incubate.data_generator.MultiSlotStringDataGenerator):
    """Lines of a dataset from samples of strings."""

    def generate_sample(self, line):
        def read():
            yield [("words", ["1", "2", "3"]), ("label", ["1"])]

        return read


Texts().run_from_memory()

# %% fluid.contrib.distributed_batch_reader
os.environ.update(PADDLE_TRAINER_ID="1", PADDLE_TRAINERS_NUM="2")  # set by the launcher
reader = distributed_batch_reader(lambda: iter(["batch " + str(i) for i in range(4)]))
print(list(reader()))  # ['batch 1', 'batch 3']

# %% fluid.incubate.fleet.base.role_maker.UserDefinedRoleMaker fluid.incubate.fleet.base.role_maker.Role
place = role_maker.UserDefinedRoleMaker(
    current_id=1, role=role_maker.Role.WORKER, worker_num=2, server_endpoints=["127.0.0.1:6174"]
)
place.generate_role()
print(place.is_worker(), place.worker_index(), place.worker_num())  # True 1 2

# %% fluid.incubate.fleet.base.role_maker.UserDefinedCollectiveRoleMaker
place = role_maker.UserDefinedCollectiveRoleMaker(current_id=0, worker_endpoints=["127.0.0.1:6170", "127.0.0.1:6171"])
place.generate_role()
print(place.is_first_worker(), place.worker_num())  # True 2

# %% fluid.incubate.fleet.base.role_maker.PaddleCloudRoleMaker
os.environ.update(TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="0", PADDLE_TRAINERS_NUM="1")
os.environ.update(PADDLE_PSERVERS_IP_PORT_LIST="127.0.0.1:6174", PADDLE_TRAINER_ENDPOINTS="127.0.0.1:6170")
place = role_maker.PaddleCloudRoleMaker()  # reads what the launcher has set
place.generate_role()
print(place.is_worker(), place.get_pserver_endpoints())  # True ['127.0.0.1:6174']

# %% fluid.incubate.fleet.base.role_maker.GeneralRoleMaker
os.environ.update(TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="0", PADDLE_TRAINERS_NUM="1")
os.environ.update(PADDLE_PSERVERS_IP_PORT_LIST="127.0.0.1:6174", PADDLE_TRAINER_ENDPOINTS="127.0.0.1:6170")
place = role_maker.GeneralRoleMaker()
place.generate_role()
print(place.is_worker(), place.worker_index())  # True 0


# %% fluid.incubate.fleet.base.role_maker.RoleMakerBase
class Alone(role_maker.RoleMakerBase):
    """The only worker of a job."""

    def generate_role(self):
        self._role, self._current_id = role_maker.Role.WORKER, 0
        self._worker_endpoints = ["127.0.0.1:6170"]
        self._role_is_generated = True


place = Alone()
place.generate_role()
print(place.is_worker(), place.worker_num())  # True 0

# %% fluid.incubate.fleet.base.role_maker.MPISymetricRoleMaker (not run: it needs processes that mpirun starts)
place = role_maker.MPISymetricRoleMaker()  # mpirun -np 4 jfluid run train.py: two servers, two workers
place.generate_role()
print(place.is_worker(), place.worker_num())

# %% fluid.incubate.fleet.base.fleet_base.Fleet fluid.incubate.fleet.base.fleet_base.Mode
print(isinstance(server_fleet, fleet_base.Fleet), fleet_base.Mode.TRANSPILER, fleet_base.Mode.COLLECTIVE)  # True 1 3

# %% fluid.incubate.fleet.base.fleet_base.DistributedOptimizer
# %% fluid.incubate.fleet.parameter_server.distribute_transpiler.TranspilerOptimizer
place = role_maker.UserDefinedRoleMaker(0, role_maker.Role.WORKER, worker_num=1, server_endpoints=["127.0.0.1:6174"])
server_fleet.init(place)
variables, loss = click_model()
strategy = distributed_strategy.StrategyFactory.create_async_strategy()
strategy.set_program_config({"wait_port": False})  # a trainer of a job waits for its servers here
optimizer = server_fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy)
optimizer.minimize(loss)
print(type(optimizer).__name__, isinstance(optimizer, fleet_base.DistributedOptimizer))  # TranspilerOptimizer True

# %% fluid.incubate.fleet.parameter_server.distribute_transpiler.DistributedTranspiler
place = role_maker.UserDefinedRoleMaker(0, role_maker.Role.WORKER, worker_num=1, server_endpoints=["127.0.0.1:6174"])
server_fleet.init(place)
print(type(server_fleet).__name__, server_fleet.is_worker(), server_fleet.server_endpoints())
# DistributedTranspiler True ['127.0.0.1:6174']

# %% fluid.incubate.fleet.parameter_server.distribute_transpiler.StrategyFactory
# %% fluid.incubate.fleet.parameter_server.distribute_transpiler.SyncStrategy
# %% fluid.incubate.fleet.parameter_server.distribute_transpiler.AsyncStrategy
# %% fluid.incubate.fleet.parameter_server.distribute_transpiler.HalfAsyncStrategy
# %% fluid.incubate.fleet.parameter_server.distribute_transpiler.GeoStrategy
# makes a SyncStrategy, an AsyncStrategy, a HalfAsyncStrategy, a GeoStrategy
made = [
    distributed_strategy.StrategyFactory.create_sync_strategy(),
    distributed_strategy.StrategyFactory.create_async_strategy(),
    distributed_strategy.StrategyFactory.create_half_async_strategy(),
    distributed_strategy.StrategyFactory.create_geo_strategy(update_frequency=100),
]
print(
    [type(strategy).__name__ for strategy in made]
)  # ['SyncStrategy', 'AsyncStrategy', 'HalfAsyncStrategy', 'GeoStrategy']

# %% fluid.incubate.fleet.parameter_server.distribute_transpiler.DistributedStrategy
# %% fluid.incubate.fleet.parameter_server.distribute_transpiler.TrainerRuntimeConfig
strategy = distributed_strategy.StrategyFactory.create_async_strategy()
print(isinstance(strategy, distributed_strategy.DistributedStrategy))  # True
print(isinstance(strategy.get_trainer_runtime_config(), distributed_strategy.TrainerRuntimeConfig))  # True

# %% fluid.incubate.fleet.collective.Collective fluid.incubate.fleet.collective.CollectiveOptimizer
# %% fluid.incubate.fleet.collective.DistributedStrategy
collective_fleet.init(role_maker.UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:6170"]))
strategy = DistributedStrategy()
strategy.use_local_sgd = False
optimizer = collective_fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy)
print(isinstance(collective_fleet, Collective), isinstance(optimizer, CollectiveOptimizer))  # True True

# %% fluid.incubate.fleet.collective.CollectiveOpBasedOptimizer
# to derive optimizers from
print(issubclass(CollectiveOpBasedOptimizer, DistributedOptimizer))  # True

# %% fluid.incubate.fleet.collective.LambConfig fluid.incubate.fleet.collective.DistFCConfig
# without fields, as in Fluid
print(vars(LambConfig()), vars(DistFCConfig()))  # {} {}

# %% fluid.incubate.fleet.collective.TrainStatus
status = TrainStatus(3)  # the epoch that a checkpoint has
print(status._epoch_no, status.next())  # 3 4

# %% fluid.incubate.fleet.utils.hdfs.HDFSClient (not run: it needs Hadoop)
client = hdfs.HDFSClient("/opt/hadoop", {"fs.default.name": "hdfs://name:9000", "hadoop.job.ugi": "me,secret"})
client.makedirs("/data")
client.upload("/data/part-0", "part-0")
print(client.is_exist("/data/part-0"), client.ls("/data"))

# %% fluid.contrib.HDFSClient fluid.contrib.multi_upload fluid.contrib.multi_download (not run: it needs Hadoop)
client = HDFSClient("/opt/hadoop", {"fs.default.name": "hdfs://name:9000", "hadoop.job.ugi": "me,secret"})
multi_upload(client, "/data/words", "words", multi_processes=2)
print(multi_download(client, "/data/words", "mine", trainer_id=0, trainers=2))  # the files of this trainer

# %% fluid.incubate.fleet.utils.fleet_util.FleetUtil
try:
    FleetUtil()
except Exception as error:
    print(type(error).__name__)  # UnsupportedError

# %% fluid.contrib.Compressor
try:
    fluid.contrib.Compressor(None, None, None)
except Exception as error:
    print(type(error).__name__)  # UnsupportedError

# %% fluid.contrib.load_persistables_for_inference
# %% fluid.contrib.load_persistables_for_increment (not run: it needs the files of servers)
program = fluid.io.load_inference_model("saved", exe)[0]
load_persistables_for_inference("saved", exe, program, "table")  # the rows of all servers as an ordinary table
transpiler = fluid.DistributeTranspiler()
transpiler.transpile(trainer_id=0, pservers=SERVERS, trainers=1)
server, startup = transpiler.get_pserver_programs("127.0.0.1:6174")
exe.run(startup)
table = server.global_block().var("table")
load_persistables_for_increment("saved", exe, server, table, "saved/table")  # a server goes on
exe.run(server)
