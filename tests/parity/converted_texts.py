"""Functions whose texts after `ProgramTranslator.get_code` are held against Fluid's, for any engine (Python 3.7).

The functions are read, and never run.
"""

# ruff: noqa: B007, F841, RUF021

import ast

import numpy as np

fluid = None


def text(engine, function):
    """Return the text of a function with numbers of names from 0 on."""
    with engine.unique_name.guard():
        return engine.dygraph.ProgramTranslator().get_code(function)


class _Sorted(ast.NodeTransformer):
    """Sorts the variables of loops: Fluid writes them in the order of a set, which differs from process to process."""

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        if "_condition_" in node.name or "_body_" in node.name:
            node.args.args.sort(key=lambda a: a.arg)
            if isinstance(node.body[-1].value, ast.Tuple):
                node.body[-1].value.elts.sort(key=ast.unparse)
        run = []
        for at, child in enumerate([*node.body, ast.Pass()]):
            if isinstance(child, ast.Assign) and ".to_static_variable(" in ast.unparse(child):
                run.append(child)
            elif run:
                node.body[at - len(run) : at] = sorted(run, key=ast.unparse)
                run = []
        return node

    def visit_Assign(self, node):
        if ast.unparse(node.value).startswith("fluid.layers.while_loop("):
            node.targets[0].elts.sort(key=ast.unparse)
            node.value.args[2].elts.sort(key=ast.unparse)
        return node


def ordered(source):
    """Return a text with sorted variables of loops, as this Python writes it."""
    return ast.unparse(_Sorted().visit(ast.parse(source)))


def helper(x):
    return x + 1


def plain(x, y=2):
    z = x + y
    return z


def if_tensor(x):
    if fluid.layers.mean(x).numpy()[0] > 5:
        x = x - 1
    else:
        x = x + 1
    return x


def if_else_label(x_v, label=None):
    if fluid.layers.mean(x_v).numpy()[0] > 5:
        x_v = x_v - 1
    else:
        x_v = x_v + 1
    if label is not None:
        loss = fluid.layers.cross_entropy(x_v, label)
        return loss
    return x_v


def if_only(x):
    y = x * 2
    if x.numpy()[0] > 0:
        y = y + 1
    return y


def if_nested(x):
    m = fluid.layers.mean(x)
    if m > 1:
        y = x + 1
        if m > 2:
            y = y + 2
        else:
            y = y + 3
    else:
        y = x - 1
    return y


def if_python(x, flag=True):
    if flag:
        x = x + 1
    return x


def if_and(x):
    if x.numpy()[0] > 0 and x.numpy()[1] > 0:
        x = x + 1
    else:
        x = x - 1
    return x


def if_two(x):
    m = fluid.layers.mean(x)
    if m > 1:
        a = x
        b = x + 1
    else:
        a = x - 1
        b = x
    return a + b


def if_new_var(x):
    m = fluid.layers.mean(x)
    if m > 1:
        a = x + 1
    return x


def while_loop(x):
    x = fluid.dygraph.to_variable(x)
    while x < 10:
        x += 1
    return x


def while_two(x):
    i = fluid.layers.fill_constant([1], "int64", 0)
    s = fluid.layers.zeros([1], "float32")
    while i < 10:
        s = s + x
        i = i + 1
    return s


def for_range(x):
    for i in range(10):
        x = x + i
    return x


def for_range_tensor(max_len):
    max_len = fluid.dygraph.to_variable(max_len)
    ret = fluid.layers.zeros(shape=[1], dtype="float32")
    for i in range(max_len):
        fluid.layers.increment(ret, value=2.0, in_place=True)
    return ret


def for_break(x):
    x = fluid.dygraph.to_variable(x)
    for i in range(10):
        if x > 5:
            break
        x += i
    return x


def while_continue(x):
    i = fluid.dygraph.to_variable(x)
    while i < 10:
        i += 1
        if i > 5:
            continue
        i += 2
    return i


def list_append(x):
    x = fluid.dygraph.to_variable(x)
    a = []
    for i in range(x):
        a.append(x)
    return a[0]


def list_append_if(x):
    a = []
    if x.numpy()[0] > 0:
        a.append(x)
    else:
        a.append(fluid.layers.fill_constant(shape=[1, 2], value=9, dtype="int64"))
    return a[0]


def print_var(x):
    x = fluid.dygraph.to_variable(x)
    print(x)
    return x


def print_fmt(x):
    x = fluid.dygraph.to_variable(x)
    print("v {}".format(x))
    print(x, 1)
    return x


def asserted(x):
    assert x.shape[0] > 0, "message"
    return x


def shape_use(x):
    x = fluid.dygraph.to_variable(x)
    y = fluid.layers.reshape(x, shape=[-1, x.shape[1]])
    return y


def shape_for(x):
    x = fluid.dygraph.to_variable(x)
    y = x
    for i in range(x.shape[0]):
        y = y + x[i]
    return y


def calls(x):
    y = helper(x)
    z = fluid.layers.relu(y)
    print(len([1]))
    return z


def attrs(x):
    class Bag:
        pass

    b = Bag()
    b.y = x
    if x.numpy()[0] > 0:
        b.y = x + 1
    return b.y


def strings(x):
    """Doc string."""
    # comment
    s = "a" + "b" + """c"""
    t = (x, [1, 2], {"a": 1})
    return x[0], x[1:2, :], -x, x**2, not s, lambda q: q + 1


def lr(x):
    linear = fluid.dygraph.Linear(4, 2)
    return linear(x)


def elif_chain(x):
    m = fluid.layers.mean(x)
    if m > 3:
        x = x + 3
    elif m > 2:
        x = x + 2
    else:
        x = x + 1
    return x


def while_and(x):
    x = fluid.dygraph.to_variable(x)
    y = fluid.layers.zeros([1], "float32")
    while x < 10 and y < 3 or not x > 2:
        x += 1
        y = y + x
    return x, y


def nested_loops(x):
    x = fluid.dygraph.to_variable(x)
    s = fluid.layers.zeros([1], "int64")
    for i in range(x):
        for j in range(1, x, 2):
            s = s + j
        s = s + i
    return s


def both_jumps(x):
    x = fluid.dygraph.to_variable(x)
    for i in range(10):
        x += 1
        if i > 5:
            continue
            x += 100
        elif x > 50:
            break
        x += 10
    return x


def jump_nested(x):
    x = fluid.dygraph.to_variable(x)
    i = fluid.layers.zeros([1], "int64")
    while i < 10:
        i += 1
        if i > 2:
            if i > 5:
                break
            x += 3
        else:
            x += 4
        x += i
    return x


def python_break(x):
    for i in range(3):
        if i == 2:
            break
        x = x + i
    return x


def made_in_loop(x):
    x = fluid.dygraph.to_variable(x)
    while x < 10:
        x += 1
        y = x * 2
    return y


def basic_in_loop(x):
    x = fluid.dygraph.to_variable(x)
    k = 2
    t = "s"
    while x < 10:
        x = x + k
        print(t)
    return x, k


def alias(x):
    x = fluid.dygraph.to_variable(x)
    n = x.shape[0]
    s = x.shape
    y = x
    for i in range(n):
        y = y + 1
    z = fluid.layers.reshape(y, shape=[s[0], -1])
    return z


def shape_if(x):
    x = fluid.dygraph.to_variable(x)
    if x.shape[0] > 3:
        x = x + 1
    return x


def if_not(x):
    if not x.numpy()[0] > 0:
        x = x + 1
    else:
        x = x - 1
    return x


def if_or_python(x, k=3):
    if k > 2 or x.numpy()[0] > 0:
        x = x + 1
    return x


def if_tensor_itself(x):
    x = fluid.dygraph.to_variable(x)
    if x:
        y = x + 1
    else:
        y = x
    return y


def if_none(x, y=None):
    if y is not None and x.numpy()[0] > 0:
        x = x + 1
    return x


def if_three(x):
    m = fluid.layers.mean(x)
    if m > 1 and m < 5 and m > 0:
        x = x + 1
        print(x)
        assert m > 0
    return x


def numpy_value(x):
    v = x.numpy()
    w = v[0] + 1
    return w


def list_set(x):
    x = fluid.dygraph.to_variable(x)
    a = []
    for i in range(x):
        a.append(x)
    a[0] = x + 1
    return a


def list_plain(x):
    a = [1, 2]
    a.append(3)
    return a


def kwargs(x, *args, k=1, **more):
    y = fluid.layers.fc(x, size=10, act="relu")
    z = np.zeros(3)
    return sum([y, z]), "a".join(["b"]), len(args)


def embedded(x):
    y = fluid.embedding(x, size=[3, 4])
    w = fluid.ParamAttr(name="q")
    return y


def try_with(x):
    with fluid.dygraph.guard():
        y = fluid.dygraph.to_variable(x)
        if y > 1:
            y = y + 1
    return y


def aug(x):
    m = fluid.layers.mean(x)
    c = 0
    if m > 1:
        c += 1
        x += 2
    return x, c


def only_else(x):
    m = fluid.layers.mean(x)
    if m > 1:
        pass
    else:
        x = x + 1
    return x


def in_for(x):
    m = fluid.layers.mean(x)
    for k in [1, 2]:
        if m > k:
            x = x + k
    return x


def if_in_while(x):
    x = fluid.dygraph.to_variable(x)
    i = fluid.layers.zeros([1], "int64")
    while i < 3:
        if x > 2:
            x = x - 1
        else:
            x = x + 1
        i = i + 1
    return x


class Net:
    """Methods of a layer."""

    def forward(self, x):
        h = self.fc(x)
        if fluid.layers.mean(h) > 0:
            h = self.act(h)
            out = h + self.bias
        else:
            out = h - self.bias
        return out

    def looped(self, x):
        x = fluid.dygraph.to_variable(x)
        while x < self.limit:
            x = x + self.step
        return x


# Fluid's texts of these functions are no Python, or compute a different result than the function.


def ternary(x):
    y = x + 1 if x.numpy()[0] > 0 else x - 1
    return y


def early(x):
    if x.numpy()[0] > 0:
        return x
    return x + 1


def decay(x):
    r = fluid.dygraph.PiecewiseDecay([1, 2], [0.1, 0.2, 0.3], 0)
    return r()


WRONG_IN_FLUID = (ternary, early, decay)
FUNCTIONS = {
    name: value
    for name, value in [*globals().items(), *vars(Net).items()]
    if getattr(value, "__code__", None) is not None
    and name not in ("text", "ordered", "helper")
    and value not in WRONG_IN_FLUID
}
