import paddle.fluid as fluid

word = fluid.data(name="word", shape=[None, 1], dtype="int64", lod_level=1)
target = fluid.data(name="target", shape=[None, 1], dtype="int64", lod_level=1)
emb = fluid.layers.embedding(input=word, size=[30, 8])
gru = fluid.layers.dynamic_gru(input=fluid.layers.fc(emb, size=24), size=8)
emission = fluid.layers.fc(input=gru, size=5)
crf_cost = fluid.layers.linear_chain_crf(
    input=emission, label=target, param_attr=fluid.ParamAttr(name="crfw", learning_rate=0.2)
)
decode = fluid.layers.crf_decoding(input=emission, param_attr=fluid.ParamAttr(name="crfw"))
(precision, recall, f1, n_infer, n_label, n_correct) = fluid.layers.chunk_eval(
    input=decode, label=target, chunk_scheme="IOB", num_chunk_types=2
)
avg_cost = fluid.layers.mean(crf_cost)
fluid.optimizer.SGD(
    learning_rate=fluid.layers.exponential_decay(
        learning_rate=0.01, decay_steps=100, decay_rate=0.5, staircase=True
    )
).minimize(avg_cost)
evaluator = fluid.metrics.ChunkEvaluator()
evaluator.update(1, 1, 1)
print(evaluator.eval())
