"""A policy that is learnt from rewards (Williams 1992), with branches in Python and upon tensors."""

import numpy as np

from tests.parity.dygraph.engine import Case, dygraph, fluid, layers, minimized, variables

TRACK = 7  # places in a row; the end on the right has the reward


class Policy(dygraph.Layer):
    """Chances of a step to the left, to the right, and of none."""

    def __init__(self):
        super(Policy, self).__init__()
        self.inner = dygraph.Linear(TRACK, 6)
        self.out = dygraph.Linear(6, 3, act="softmax")

    def forward(self, places):
        inner = self.inner(places)
        if layers.reduce_mean(inner) > 0.0:
            inner = layers.tanh(inner)
        else:
            inner = layers.relu(inner) + 0.1 * inner
        return self.out(inner)


def run(net, r):
    """An episode: (places [n, TRACK], actions [n, 1], rewards [n])."""
    at, places, actions, rewards = TRACK // 2, [], [], []
    while len(places) < 12:
        here = np.eye(TRACK, dtype="float32")[[at]]
        with dygraph.no_grad():
            chances = net(*variables(here)).numpy()[0]
        action = int(min(np.searchsorted(np.cumsum(chances), r.rand()), 2))
        places.append(here[0])
        actions.append([action])
        if action == 0:
            at -= 1
        elif action == 1:
            at += 1
        if at in (0, TRACK - 1):
            rewards.append(1.0 if at else -1.0)
            break
        rewards.append(-0.1)
    return np.array(places), np.array(actions, "int64"), np.array(rewards, "float32")


def policy_gradient(of):
    net = of(Policy)()
    optimizer = fluid.optimizer.RMSProp(0.02, parameter_list=net.parameters())

    def step(r):
        places, actions, rewards = run(net, r)
        returns = np.cumsum(rewards[::-1])[::-1].astype("float32").reshape(-1, 1)
        places, actions, returns = variables(places, actions, returns.copy())
        losses = layers.cross_entropy(net(places), actions) * returns
        loss = layers.reduce_mean(losses)
        if float(loss) > 0.2:
            loss = loss * 0.5
        return [minimized(loss, optimizer)]

    return Case({"net": net}, {"net": optimizer}, step)


PROGRAMS = (policy_gradient,)
