"""Classes of images, two networks that play against each other, and a gradient of a gradient."""

from tests.parity.dygraph.engine import (
    Case,
    dygraph,
    floats,
    fluid,
    integers,
    layers,
    minimized,
    variables,
)


class Digits(dygraph.Layer):
    def __init__(self):
        super(Digits, self).__init__()
        self.first = dygraph.Conv2D(1, 4, 5, act="relu")
        self.second = dygraph.Conv2D(4, 6, 3, act="relu")
        self.pool = dygraph.Pool2D(pool_size=2, pool_stride=2, pool_type="max")
        self.out = dygraph.Linear(6 * 3 * 3, 10, act="softmax")

    def forward(self, images, labels):
        seen = self.pool(self.second(self.pool(self.first(images))))
        chances = self.out(layers.reshape(seen, [-1, 6 * 3 * 3]))
        loss = layers.mean(layers.cross_entropy(chances, labels))
        return loss, layers.accuracy(chances, labels)


def digits(of):
    net = of(Digits)()
    adam = fluid.optimizer.Adam(0.01, parameter_list=net.parameters())

    def step(r):
        loss, accuracy = net(*variables(floats(r, 8, 1, 20, 20), integers(r, 10, 8, 1)))
        return [minimized(loss, adam), accuracy]

    return Case({"net": net}, {"net": adam}, step)


class ConvNorm(dygraph.Layer):
    def __init__(self, before, after, stride=1, act=None):
        super(ConvNorm, self).__init__()
        self.conv = dygraph.Conv2D(before, after, 3, stride=stride, padding=1, bias_attr=False)
        self.norm = dygraph.BatchNorm(after, act=act)

    def forward(self, seen):
        return self.norm(self.conv(seen))


class Residual(dygraph.Layer):
    def __init__(self, before, after, stride):
        super(Residual, self).__init__()
        self.first = ConvNorm(before, after, stride, act="relu")
        self.second = ConvNorm(after, after)
        self.straight = before == after and stride == 1
        if not self.straight:
            self.short = ConvNorm(before, after, stride)

    def forward(self, seen):
        short = seen if self.straight else self.short(seen)
        return layers.elementwise_add(short, self.second(self.first(seen)), act="relu")


class ResNet(dygraph.Layer):
    def __init__(self):
        super(ResNet, self).__init__()
        self.stem = ConvNorm(3, 4, act="relu")
        self.blocks = dygraph.Sequential(Residual(4, 4, 1), Residual(4, 8, 2))
        self.pool = dygraph.Pool2D(pool_type="avg", global_pooling=True)
        self.out = dygraph.Linear(8, 5)

    def forward(self, images, labels):
        seen = self.pool(self.blocks(self.stem(images)))
        scores = self.out(layers.reshape(seen, [-1, 8]))
        return layers.mean(layers.softmax_with_cross_entropy(scores, labels))


def resnet(of):
    net = of(ResNet)()
    momentum = fluid.optimizer.Momentum(
        learning_rate=dygraph.PiecewiseDecay([3, 6], [0.1, 0.05, 0.01], 0),
        momentum=0.9,
        regularization=fluid.regularizer.L2Decay(1e-3),
        parameter_list=net.parameters(),
    )

    def step(r):
        loss = net(*variables(floats(r, 8, 3, 12, 12), integers(r, 5, 8, 1)))
        return [minimized(loss, momentum)]

    return Case({"net": net}, {"net": momentum}, step)


class Generator(dygraph.Layer):
    def __init__(self):
        super(Generator, self).__init__()
        self.inner = dygraph.Linear(4, 6 * 3 * 3, act="relu")
        self.norm = dygraph.BatchNorm(6, act="relu")
        self.up = dygraph.Conv2DTranspose(6, 1, 4, stride=2, padding=1, act="tanh")

    def forward(self, noise):
        return self.up(self.norm(layers.reshape(self.inner(noise), [-1, 6, 3, 3])))


class Discriminator(dygraph.Layer):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.conv = dygraph.Conv2D(1, 5, 3, stride=2, padding=1)
        self.out = dygraph.Linear(5 * 3 * 3, 1)

    def forward(self, images):
        seen = layers.leaky_relu(self.conv(images), alpha=0.2)
        return self.out(layers.reshape(seen, [-1, 5 * 3 * 3]))


def gan(of):
    generator, discriminator = of(Generator)(), of(Discriminator)()
    optimizers = {
        name: fluid.optimizer.Adam(0.005, beta1=0.5, parameter_list=net.parameters())
        for name, net in (("generator", generator), ("discriminator", discriminator))
    }

    def judged(images, truth):
        scores = discriminator(images)
        wanted = layers.fill_constant([8, 1], "float32", truth)
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(scores, wanted))

    def step(r):
        real, noise = variables(floats(r, 8, 1, 6, 6), floats(r, 8, 4))
        made = generator(noise)
        told = judged(real, 1.0) + judged(made.detach(), 0.0)
        minimized(told, optimizers["discriminator"])
        fooled = judged(generator(noise), 1.0)
        fooled.backward()
        optimizers["generator"].minimize(fooled)
        generator.clear_gradients()
        discriminator.clear_gradients()
        return [told, fooled]

    return Case({"generator": generator, "discriminator": discriminator}, optimizers, step)


class Critic(dygraph.Layer):
    """Of convolutions alone: Fluid has no second derivative of a matrix product."""

    def __init__(self):
        super(Critic, self).__init__()
        self.first = dygraph.Conv2D(1, 4, 3, padding=1)
        self.second = dygraph.Conv2D(4, 4, 3, stride=2, padding=1)
        self.out = dygraph.Conv2D(4, 1, 3)

    def forward(self, images):
        seen = layers.leaky_relu(self.first(images), alpha=0.2)
        return self.out(layers.leaky_relu(self.second(seen), alpha=0.2))


def gradient_penalty(of):
    """The critic of an improved Wasserstein GAN (Gulrajani et al. 2017)."""
    critic = of(Critic)()
    adam = fluid.optimizer.Adam(0.01, parameter_list=critic.parameters())

    def step(r):
        real, made = floats(r, 6, 1, 6, 6), floats(r, 6, 1, 6, 6)
        share = r.rand(6, 1, 1, 1).astype("float32")
        real, made, mixed = variables(real, made, share * real + (1 - share) * made)
        mixed.stop_gradient = False
        slopes = dygraph.grad(critic(mixed), mixed, create_graph=True, retain_graph=True, only_inputs=True)[0]
        norms = layers.sqrt(layers.reduce_sum(layers.square(slopes), dim=[1, 2, 3]) + 1e-12)
        penalty = layers.reduce_mean(layers.square(norms - 1.0))
        gap = layers.reduce_mean(critic(made)) - layers.reduce_mean(critic(real))
        return [minimized(gap + 10.0 * penalty, adam), penalty]

    return Case({"critic": critic}, {"critic": adam}, step)


PROGRAMS = (digits, resnet, gan, gradient_penalty)
