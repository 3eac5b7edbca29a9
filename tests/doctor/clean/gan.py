import paddle.fluid as fluid

d_program, g_program = fluid.Program(), fluid.Program()
startup = fluid.Program()
with fluid.program_guard(d_program, startup):
    with fluid.unique_name.guard():
        image = fluid.layers.data(name="image", shape=[16], dtype="float32")
        label = fluid.layers.data(name="label", shape=[1], dtype="float32")
        logit = fluid.layers.fc(image, size=1, param_attr=fluid.ParamAttr(name="d_w"))
        d_loss = fluid.layers.mean(
            fluid.layers.sigmoid_cross_entropy_with_logits(x=logit, label=label)
        )
with fluid.program_guard(g_program, startup):
    with fluid.unique_name.guard("g_"):
        noise = fluid.layers.data(name="noise", shape=[4], dtype="float32")
        made = fluid.layers.fc(noise, size=16, act="tanh")
        ones = fluid.layers.fill_constant_batch_size_like(made, [-1, 1], "float32", 1.0)
        g_logit = fluid.layers.fc(made, size=1, param_attr=fluid.ParamAttr(name="d_w"))
        g_loss = fluid.layers.mean(
            fluid.layers.sigmoid_cross_entropy_with_logits(x=g_logit, label=ones)
        )
parameters = [p.name for p in g_program.global_block().all_parameters() if p.name != "d_w"]
with fluid.program_guard(g_program, startup):
    fluid.optimizer.Adam(learning_rate=2e-4).minimize(g_loss, parameter_list=parameters)
with fluid.program_guard(d_program, startup):
    fluid.optimizer.Adam(learning_rate=2e-4, beta1=0.5).minimize(d_loss)
