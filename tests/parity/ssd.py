"""A small SSD, for any engine that offers the Fluid API (Python 3.7 syntax)."""

import numpy as np

from tests.parity.programs import new_scope, set_parameters

CLASSES, SIZE, STEPS = 4, 32, 5


def batch(fluid, rng):
    """Three images, and the boxes and labels of one to four objects in each."""
    counts = [int(n) for n in rng.randint(1, 5, 3)]
    corner, size = rng.rand(sum(counts), 2) * 0.6, 0.15 + rng.rand(sum(counts), 2) * 0.25
    boxes = np.concatenate([corner, corner + size], 1).astype("float32")
    labels = rng.randint(1, CLASSES, (sum(counts), 1)).astype("int32")
    place = fluid.CPUPlace()
    return {
        "image": rng.rand(3, 3, SIZE, SIZE).astype("float32"),
        "box": fluid.create_lod_tensor(boxes, [counts], place),
        "label": fluid.create_lod_tensor(labels, [counts], place),
    }


def heads(fluid):
    """The data and what SSD predicts: (boxes, labels), (codes, scores, priors, variances)."""
    layers = fluid.layers
    image = fluid.data(name="image", shape=[None, 3, SIZE, SIZE], dtype="float32")
    box = fluid.data(name="box", shape=[None, 4], dtype="float32", lod_level=1)
    label = fluid.data(name="label", shape=[None, 1], dtype="int32", lod_level=1)
    x, maps = image, []
    for channels in (6, 8, 8, 8):
        x = layers.conv2d(x, channels, 3, stride=2, padding=1, act="relu")
        maps.append(x)
    found = layers.multi_box_head(
        inputs=maps[1:],
        image=image,
        base_size=SIZE,
        num_classes=CLASSES,
        aspect_ratios=[[2.0], [2.0, 3.0], [2.0]],
        min_ratio=20,
        max_ratio=80,
        kernel_size=3,
        pad=1,
        clip=True,
    )
    return (box, label), found


def trainer(fluid):
    (box, label), (place, score, prior, variance) = heads(fluid)
    loss = fluid.layers.reduce_sum(fluid.layers.ssd_loss(place, score, box, label, prior, variance))
    fluid.optimizer.Momentum(learning_rate=0.05, momentum=0.9).minimize(loss)
    return loss


def detector(fluid):
    (box, label), found = heads(fluid)
    detected = fluid.layers.detection_output(*found, keep_top_k=20, nms_threshold=0.45)
    precision = fluid.metrics.DetectionMAP(detected, label, box, class_num=CLASSES, overlap_threshold=0.2)
    return (detected,) + tuple(precision.get_map_var())


def train_and_detect(fluid):
    """Losses of STEPS steps from parameters that depend on their names alone, the norms of the
    parameters then, and what is detected in two batches: rows, lod, mAP of the batch, mAP so far.
    """
    scope, rng = new_scope(fluid), np.random.RandomState(0)
    result = {"losses": [], "detected": []}
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(scope):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            loss = trainer(fluid)
        exe.run(startup)
        set_parameters(fluid, main, scope)
        for _ in range(STEPS):
            found = exe.run(main, feed=batch(fluid, rng), fetch_list=[loss])[0]
            result["losses"].append(float(np.ravel(found)[0]))
        result["norms"] = {
            p.name: float(np.linalg.norm(np.array(scope.find_var(p.name).get_tensor()))) for p in main.all_parameters()
        }
        test, begin = fluid.Program(), fluid.Program()
        with fluid.program_guard(test, begin), fluid.unique_name.guard():
            fetches = detector(fluid)
        for op in list(begin.global_block().ops):  # the parameters keep their values
            if set(op.output_arg_names) & set(result["norms"]):
                begin.global_block()._remove_op(begin.global_block().ops.index(op))
        exe.run(begin)
        for _ in range(2):
            rows, here, so_far = exe.run(test, feed=batch(fluid, rng), fetch_list=list(fetches), return_numpy=False)
            result["detected"].append(
                [
                    np.array(rows).tolist(),
                    rows.lod(),
                    float(np.array(here)[0]),
                    float(np.array(so_far)[0]),
                ]
            )
    return result
