"""A network of deformable convolutions and pooled boxes, for any engine that offers the Fluid API
(Python 3.7 syntax).
"""

import numpy as np

from tests.parity.programs import new_scope, set_parameters

CLASSES, SIZE, STEPS = 4, 16, 5


def batch(fluid, rng):
    """Two images, and three boxes with a class each."""
    corner = rng.rand(3, 2) * 8
    boxes = np.concatenate([corner, corner + 4 + rng.rand(3, 2) * 8], 1).astype("float32")
    labels = rng.randint(0, CLASSES, (3, 1)).astype("int64")
    return {
        "image": rng.rand(2, 3, SIZE, SIZE).astype("float32"),
        "boxes": fluid.create_lod_tensor(boxes, [[1, 2]], fluid.CPUPlace()),
        "label": fluid.create_lod_tensor(labels, [[1, 2]], fluid.CPUPlace()),
    }


def network(fluid):
    """Both versions of deformable convolution at two scales, which are put together; boxes pooled
    in every way. With an im2col_step above the batch, as by default, Fluid's CPU kernel gives zeros.
    """
    layers = fluid.layers
    image = fluid.data(name="image", shape=[None, 3, SIZE, SIZE], dtype="float32")
    boxes = fluid.data(name="boxes", shape=[None, 4], dtype="float32", lod_level=1)
    boxes.stop_gradient = False  # the gradient of prroi_pool needs that
    label = fluid.data(name="label", shape=[None, 1], dtype="int64", lod_level=1)
    x = layers.conv2d(image, 8, 3, stride=2, padding=1, act="relu")
    offset = layers.conv2d(x, 2 * 9, 3, padding=1)
    mask = layers.sigmoid(layers.conv2d(x, 9, 3, padding=1))
    fine = layers.relu(layers.deformable_conv(x, offset, mask, 8, 3, padding=1, im2col_step=1))
    offset = layers.conv2d(fine, 2 * 2 * 9, 3, stride=2, padding=1)
    coarse = layers.deformable_conv(fine, offset, None, 4, 3, 2, 1, deformable_groups=2, im2col_step=1, modulated=False)
    larger = layers.resize_bilinear(coarse, [SIZE // 2, SIZE // 2])
    x = layers.concat([fine, larger, layers.resize_nearest(coarse, scale=2.0)], 1)  # 16 channels
    still = layers.fill_constant([3, 2, 2, 2], "float32", 0.0)
    pooled = [
        layers.roi_align(x, boxes, 2, 2, 0.5),
        layers.roi_pool(x, boxes, 2, 2, 0.5),
        layers.prroi_pool(x, boxes, 0.5, 2, 2),
        layers.psroi_pool(x, boxes, 4, 0.5, 2, 2),
        # with offsets the gradients of Fluid's kernel are not those of its function
        layers.deformable_roi_pooling(x, boxes, still, True, 0.5, [1, 1], 2, 2, sample_per_part=2),
    ]
    score = layers.fc([layers.flatten(p) for p in pooled], CLASSES)
    return layers.mean(layers.softmax_with_cross_entropy(score, label))


def train(fluid):
    """Losses of STEPS steps from parameters that depend on their names alone, and the norms of the
    parameters then.
    """
    scope, rng = new_scope(fluid), np.random.RandomState(0)
    main, startup = fluid.Program(), fluid.Program()
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = network(fluid)
        fluid.optimizer.Momentum(learning_rate=0.05, momentum=0.9).minimize(loss)
        exe.run(startup)
        set_parameters(fluid, main, scope)
        losses = [float(np.ravel(exe.run(main, feed=batch(fluid, rng), fetch_list=[loss])[0])[0]) for _ in range(STEPS)]
        norms = {
            p.name: float(np.linalg.norm(np.array(scope.find_var(p.name).get_tensor()))) for p in main.all_parameters()
        }
    return {"losses": losses, "norms": norms}
