import paddle.fluid as fluid

slots = [fluid.layers.data(name=name, shape=[1], dtype="int64", lod_level=1) for name in ("a", "b")]
dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
dataset.set_use_var(slots)
dataset.set_batch_size(32)
dataset.set_thread(2)
dataset.set_filelist(["part-0", "part-1"])
dataset.set_pipe_command("cat")
