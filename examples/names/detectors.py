"""Examples of layers of two-stage and one-stage detectors: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

exe = fluid.Executor(fluid.CPUPlace())


def boxes_of(values, lengths):
    """Rows as a LoDTensor: `lengths` of them belong to each image."""
    return fluid.create_lod_tensor(values, [lengths], fluid.CPUPlace())


# %% fluid.layers.generate_proposals
scores = fluid.data("scores", [None, 2, 2, 2], "float32")  # two anchors at each of four places
deltas = fluid.data("deltas", [None, 8, 2, 2], "float32")
info = fluid.data("info", [None, 3], "float32")
anchors = fluid.data("anchors", [2, 2, 2, 4], "float32")
variances = fluid.data("variances", [2, 2, 2, 4], "float32")
rois, odds = fluid.layers.generate_proposals(scores, deltas, info, anchors, variances, nms_thresh=0.9)
corners = np.float32([[0, 0, 15, 15], [0, 0, 31, 15]] * 4).reshape(2, 2, 2, 4)
feed = {"scores": np.arange(8, dtype="float32").reshape(1, 2, 2, 2), "deltas": np.zeros([1, 8, 2, 2], "float32")}
feed.update(info=np.float32([[32, 32, 1]]), anchors=corners, variances=np.ones_like(corners))
found = exe.run(feed=feed, fetch_list=[rois], return_numpy=False)[0]
print(np.array(found).tolist())  # [[0.0, 0.0, 31.0, 15.0], [0.0, 0.0, 15.0, 15.0]]

# %% fluid.layers.distribute_fpn_proposals
rois = fluid.data("rois", [None, 4], "float32", lod_level=1)
levels, restore = fluid.layers.distribute_fpn_proposals(rois, min_level=2, max_level=3, refer_level=3, refer_scale=224)
feed = {"rois": boxes_of(np.float32([[0, 0, 20, 20], [0, 0, 300, 300]]), [2])}
found = exe.run(feed=feed, fetch_list=[*levels, restore], return_numpy=False)
print([np.array(one).shape for one in found])  # [(1, 4), (1, 4), (2, 1)]

# %% fluid.layers.collect_fpn_proposals
rois = [fluid.data("rois_" + level, [None, 4], "float32", lod_level=1) for level in "ab"]
scores = [fluid.data("scores_" + level, [None, 1], "float32", lod_level=1) for level in "ab"]
best = fluid.layers.collect_fpn_proposals(rois, scores, min_level=2, max_level=3, post_nms_top_n=2)
feed = {
    "rois_a": boxes_of(np.float32([[0, 0, 1, 1], [0, 0, 2, 2]]), [2]),
    "rois_b": boxes_of(np.float32([[0, 0, 9, 9]]), [1]),
}
feed.update(scores_a=boxes_of(np.float32([[0.1], [0.9]]), [2]), scores_b=boxes_of(np.float32([[0.5]]), [1]))
print(np.array(exe.run(feed=feed, fetch_list=[best], return_numpy=False)[0]).tolist())
# [[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 9.0, 9.0]]

# %% fluid.layers.generate_proposal_labels
rois = fluid.data("rois", [None, 4], "float32", lod_level=1)
classes = fluid.data("classes", [None, 1], "int32", lod_level=1)
crowd = fluid.data("crowd", [None, 1], "int32", lod_level=1)
boxes = fluid.data("boxes", [None, 4], "float32", lod_level=1)
info = fluid.data("info", [None, 3], "float32")
picked, labels, *weights = fluid.layers.generate_proposal_labels(
    rois, classes, crowd, boxes, info, batch_size_per_im=4, fg_fraction=0.5, class_nums=3, use_random=False
)
feed = {"rois": boxes_of(np.float32([[0, 0, 9, 9], [40, 40, 60, 60]]), [2]), "classes": boxes_of(np.int32([[2]]), [1])}
feed.update(crowd=boxes_of(np.int32([[0]]), [1]), boxes=boxes_of(np.float32([[0, 0, 9, 9]]), [1]))
feed["info"] = np.float32([[64, 64, 1]])
print(np.array(exe.run(feed=feed, fetch_list=[labels], return_numpy=False)[0]).ravel())  # [2 2 0]

# %% fluid.layers.generate_mask_labels
info = fluid.data("info", [None, 3], "float32")
classes = fluid.data("classes", [None, 1], "int32", lod_level=1)
crowd = fluid.data("crowd", [None, 1], "int32", lod_level=1)
polygons = fluid.data("polygons", [None, 2], "float32", lod_level=3)  # images, objects, polygons, points
rois = fluid.data("rois", [None, 4], "float32", lod_level=1)
labels = fluid.data("labels", [None, 1], "int32", lod_level=1)
mask_rois, has_mask, masks = fluid.layers.generate_mask_labels(
    info, classes, crowd, polygons, rois, labels, num_classes=3, resolution=4
)
square = np.float32([[0, 0], [8, 0], [8, 8], [0, 8]])
feed = {"info": np.float32([[16, 16, 1]]), "classes": boxes_of(np.int32([[2]]), [1])}
feed.update(crowd=boxes_of(np.int32([[0]]), [1]), rois=boxes_of(np.float32([[0, 0, 8, 8]]), [1]))
feed["polygons"] = fluid.create_lod_tensor(square, [[1], [1], [4]], fluid.CPUPlace())
feed["labels"] = boxes_of(np.int32([[2]]), [1])
# 3 classes of 4 by 4
print(np.array(exe.run(feed=feed, fetch_list=[masks], return_numpy=False)[0]).shape)  # (1, 48)

# %% fluid.layers.rpn_target_assign
deltas = fluid.data("deltas", [None, 2, 4], "float32")
logits = fluid.data("logits", [None, 2, 1], "float32")
anchors = fluid.data("anchors", [2, 4], "float32")
variances = fluid.data("variances", [2, 4], "float32")
boxes = fluid.data("boxes", [None, 4], "float32", lod_level=1)
crowd = fluid.data("crowd", [None, 1], "int32", lod_level=1)
info = fluid.data("info", [None, 3], "float32")
scores, places, labels, targets, weights = fluid.layers.rpn_target_assign(
    deltas, logits, anchors, variances, boxes, crowd, info, use_random=False
)
feed = {"deltas": np.zeros([1, 2, 4], "float32"), "logits": np.zeros([1, 2, 1], "float32")}
feed.update(anchors=np.float32([[0, 0, 9, 9], [40, 40, 60, 60]]), variances=np.ones([2, 4], "float32"))
feed.update(boxes=boxes_of(np.float32([[0, 0, 9, 9]]), [1]), crowd=boxes_of(np.int32([[0]]), [1]))
feed["info"] = np.float32([[64, 64, 1]])
print(np.array(exe.run(feed=feed, fetch_list=[labels], return_numpy=False)[0]).ravel())  # [1 0]

# %% fluid.layers.retinanet_target_assign
deltas = fluid.data("deltas", [None, 2, 4], "float32")
logits = fluid.data("logits", [None, 2, 3], "float32")
anchors = fluid.data("anchors", [2, 4], "float32")
variances = fluid.data("variances", [2, 4], "float32")
boxes = fluid.data("boxes", [None, 4], "float32", lod_level=1)
classes = fluid.data("classes", [None, 1], "int32", lod_level=1)
crowd = fluid.data("crowd", [None, 1], "int32", lod_level=1)
info = fluid.data("info", [None, 3], "float32")
found = fluid.layers.retinanet_target_assign(
    deltas, logits, anchors, variances, boxes, classes, crowd, info, num_classes=3
)
feed = {"deltas": np.zeros([1, 2, 4], "float32"), "logits": np.zeros([1, 2, 3], "float32")}
feed.update(anchors=np.float32([[0, 0, 9, 9], [40, 40, 60, 60]]), variances=np.ones([2, 4], "float32"))
feed.update(boxes=boxes_of(np.float32([[0, 0, 9, 9]]), [1]), classes=boxes_of(np.int32([[2]]), [1]))
feed.update(crowd=boxes_of(np.int32([[0]]), [1]), info=np.float32([[64, 64, 1]]))
scores, places, labels, targets, weights, foregrounds = found
(found,) = exe.run(feed=feed, fetch_list=[labels], return_numpy=False)
print(np.array(found).ravel())  # [2 0]

# %% fluid.layers.retinanet_detection_output
deltas = fluid.data("deltas", [None, 2, 4], "float32")
scores = fluid.data("scores", [None, 2, 3], "float32")
anchors = fluid.data("anchors", [2, 4], "float32")
info = fluid.data("info", [None, 3], "float32")
kept = fluid.layers.retinanet_detection_output([deltas], [scores], [anchors], info)
feed = {"deltas": np.zeros([1, 2, 4], "float32"), "scores": np.float32([[[0.9, 0.1, 0.01], [0.02, 0.01, 0.7]]])}
feed.update(anchors=np.float32([[0, 0, 9, 9], [40, 40, 60, 60]]), info=np.float32([[64, 64, 1]]))
print(np.array(exe.run(feed=feed, fetch_list=[kept], return_numpy=False)[0]).shape)  # (6, 6)
