"""Examples of layers of images, normalization and detection: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

exe = fluid.Executor(fluid.CPUPlace())
half = fluid.initializer.Constant(0.5)

# %% fluid.layers.conv2d
image = fluid.data("image", [None, 3, 32, 32], "float32")
y = fluid.layers.conv2d(image, num_filters=8, filter_size=3, stride=2, padding=1, act="relu")
exe.run(fluid.default_startup_program())
print(exe.run(feed={"image": np.ones([2, 3, 32, 32], "float32")}, fetch_list=[y])[0].shape)  # (2, 8, 16, 16)

# %% fluid.layers.conv2d_transpose
image = fluid.data("image", [None, 3, 8, 8], "float32")
y = fluid.layers.conv2d_transpose(image, num_filters=4, filter_size=2, stride=2)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"image": np.ones([2, 3, 8, 8], "float32")}, fetch_list=[y])[0].shape)  # (2, 4, 16, 16)

# %% fluid.layers.conv3d
video = fluid.data("video", [None, 3, 4, 8, 8], "float32")
y = fluid.layers.conv3d(video, num_filters=2, filter_size=3, padding=1)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"video": np.ones([1, 3, 4, 8, 8], "float32")}, fetch_list=[y])[0].shape)  # (1, 2, 4, 8, 8)

# %% fluid.layers.conv3d_transpose
video = fluid.data("video", [None, 3, 2, 4, 4], "float32")
y = fluid.layers.conv3d_transpose(video, num_filters=2, filter_size=2, stride=2)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"video": np.ones([1, 3, 2, 4, 4], "float32")}, fetch_list=[y])[0].shape)  # (1, 2, 4, 8, 8)

# %% fluid.layers.deformable_conv
image = fluid.data("image", [None, 3, 8, 8], "float32")
offset = fluid.data("offset", [None, 18, 8, 8], "float32")  # two for each of the 9 taps of a filter
mask = fluid.data("mask", [None, 9, 8, 8], "float32")
y = fluid.layers.deformable_conv(image, offset, mask, num_filters=2, filter_size=3, padding=1)
exe.run(fluid.default_startup_program())
feed = {"image": np.ones([1, 3, 8, 8], "float32"), "offset": np.zeros([1, 18, 8, 8], "float32")}
feed["mask"] = np.ones([1, 9, 8, 8], "float32")
print(exe.run(feed=feed, fetch_list=[y])[0].shape)  # (1, 2, 8, 8)

# %% fluid.layers.pool2d
image = fluid.layers.assign(np.float32([[[[1, 2], [3, 4]]]]))
largest = fluid.layers.pool2d(image, pool_size=2, pool_type="max")
average = fluid.layers.pool2d(image, pool_type="avg", global_pooling=True)
print(*exe.run(fetch_list=[largest, average]))  # [[[[4.]]]] [[[[2.5]]]]

# %% fluid.layers.pool3d
video = fluid.data("video", [None, 1, 2, 4, 4], "float32")
y = fluid.layers.pool3d(video, pool_size=2, pool_stride=2, pool_type="avg")
print(exe.run(feed={"video": np.ones([1, 1, 2, 4, 4], "float32")}, fetch_list=[y])[0].shape)  # (1, 1, 1, 2, 2)

# %% fluid.layers.adaptive_pool2d
image = fluid.data("image", [None, 3, 7, 9], "float32")
y = fluid.layers.adaptive_pool2d(image, pool_size=[2, 3], pool_type="avg")
print(exe.run(feed={"image": np.ones([1, 3, 7, 9], "float32")}, fetch_list=[y])[0].shape)  # (1, 3, 2, 3)

# %% fluid.layers.adaptive_pool3d
video = fluid.data("video", [None, 1, 4, 6, 6], "float32")
y = fluid.layers.adaptive_pool3d(video, pool_size=2, pool_type="max")
print(exe.run(feed={"video": np.ones([1, 1, 4, 6, 6], "float32")}, fetch_list=[y])[0].shape)  # (1, 1, 2, 2, 2)

# %% fluid.layers.batch_norm
x = fluid.data("x", [None, 2], "float32")
y = fluid.layers.batch_norm(x)
exe.run(fluid.default_startup_program())
print(
    exe.run(feed={"x": np.float32([[0, 10], [2, 30]])}, fetch_list=[y])[0].round(2).tolist()
)  # [[-1.0, -1.0], [1.0, 1.0]]

# %% fluid.layers.inplace_abn
image = fluid.data("image", [None, 3, 4, 4], "float32")
y = fluid.layers.inplace_abn(image, act="leaky_relu", act_alpha=0.1)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"image": np.ones([2, 3, 4, 4], "float32")}, fetch_list=[y])[0].shape)  # (2, 3, 4, 4)

# %% fluid.layers.data_norm
x = fluid.data("x", [None, 3], "float32")
y = fluid.layers.data_norm(x)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"x": np.ones([2, 3], "float32")}, fetch_list=[y])[0].shape)  # (2, 3)

# %% fluid.layers.group_norm
image = fluid.data("image", [None, 4, 2, 2], "float32")
y = fluid.layers.group_norm(image, groups=2)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"image": np.ones([1, 4, 2, 2], "float32")}, fetch_list=[y])[0].shape)  # (1, 4, 2, 2)

# %% fluid.layers.instance_norm
image = fluid.data("image", [None, 1, 1, 2], "float32")
y = fluid.layers.instance_norm(image)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"image": np.float32([[[[0, 2]]]])}, fetch_list=[y])[0].round(2).ravel())  # [-1.  1.]

# %% fluid.layers.layer_norm
x = fluid.data("x", [None, 2], "float32")
y = fluid.layers.layer_norm(x, begin_norm_axis=1)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"x": np.float32([[0, 2]])}, fetch_list=[y])[0].round(2).tolist())  # [[-1.0, 1.0]]

# %% fluid.layers.lrn
image = fluid.data("image", [None, 4, 1, 1], "float32")
y = fluid.layers.lrn(image, n=3)
print(exe.run(feed={"image": np.ones([1, 4, 1, 1], "float32")}, fetch_list=[y])[0].shape)  # (1, 4, 1, 1)

# %% fluid.layers.spectral_norm
weight = fluid.data("weight", [2, 2], "float32")
y = fluid.layers.spectral_norm(weight, power_iters=20)  # divided by its largest singular value
exe.run(fluid.default_startup_program())
print(
    exe.run(feed={"weight": np.float32([[4, 0], [0, 1]])}, fetch_list=[y])[0].round(2).tolist()
)  # [[1.0, 0.0], [0.0, 0.25]]

# %% fluid.layers.affine_channel
image = fluid.data("image", [None, 2, 1, 1], "float32")
scale = fluid.layers.assign(np.float32([2, 3]))
bias = fluid.layers.assign(np.float32([1, 0]))
y = fluid.layers.affine_channel(image, scale=scale, bias=bias)
print(exe.run(feed={"image": np.ones([1, 2, 1, 1], "float32")}, fetch_list=[y])[0].ravel())  # [3. 3.]

# %% fluid.layers.affine_grid fluid.layers.grid_sampler
image = fluid.data("image", [1, 1, 2, 2], "float32")
theta = fluid.layers.assign(np.float32([[[-1, 0, 0], [0, 1, 0]]]))  # mirrors left and right
grid = fluid.layers.affine_grid(theta, out_shape=[1, 1, 2, 2])
y = fluid.layers.grid_sampler(image, grid)
print(exe.run(feed={"image": np.float32([[[[1, 2], [3, 4]]]])}, fetch_list=[y])[0].ravel())  # [2. 1. 4. 3.]

# %% fluid.layers.image_resize
image = fluid.data("image", [None, 3, 4, 4], "float32")
y = fluid.layers.image_resize(image, out_shape=[8, 6], resample="BILINEAR")
print(exe.run(feed={"image": np.ones([1, 3, 4, 4], "float32")}, fetch_list=[y])[0].shape)  # (1, 3, 8, 6)

# %% fluid.layers.image_resize_short
image = fluid.data("image", [1, 3, 4, 8], "float32")
y = fluid.layers.image_resize_short(image, out_short_len=2)
print(exe.run(feed={"image": np.ones([1, 3, 4, 8], "float32")}, fetch_list=[y])[0].shape)  # (1, 3, 2, 4)

# %% fluid.layers.interpolate
image = fluid.data("image", [None, 3, 4, 4], "float32")
y = fluid.layers.interpolate(image, scale=2, resample="NEAREST")
print(exe.run(feed={"image": np.ones([1, 3, 4, 4], "float32")}, fetch_list=[y])[0].shape)  # (1, 3, 8, 8)

# %% fluid.layers.resize_bilinear
image = fluid.layers.assign(np.float32([[[[0, 2]]]]))
y = fluid.layers.resize_bilinear(image, out_shape=[1, 3])
print(exe.run(fetch_list=[y])[0].ravel())  # [0. 1. 2.]

# %% fluid.layers.resize_nearest
image = fluid.layers.assign(np.float32([[[[0, 2]]]]))
y = fluid.layers.resize_nearest(image, out_shape=[1, 4], align_corners=False)
print(exe.run(fetch_list=[y])[0].ravel())  # [0. 0. 2. 2.]

# %% fluid.layers.resize_trilinear
video = fluid.data("video", [None, 1, 2, 4, 4], "float32")
y = fluid.layers.resize_trilinear(video, out_shape=[4, 8, 8])
print(exe.run(feed={"video": np.ones([1, 1, 2, 4, 4], "float32")}, fetch_list=[y])[0].shape)  # (1, 1, 4, 8, 8)

# %% fluid.layers.pixel_shuffle
image = fluid.data("image", [None, 4, 2, 2], "float32")
y = fluid.layers.pixel_shuffle(image, upscale_factor=2)
print(exe.run(feed={"image": np.ones([1, 4, 2, 2], "float32")}, fetch_list=[y])[0].shape)  # (1, 1, 4, 4)

# %% fluid.layers.shuffle_channel
image = fluid.data("image", [None, 4, 1, 1], "float32")
y = fluid.layers.shuffle_channel(image, group=2)
print(exe.run(feed={"image": np.float32([[[[0]], [[1]], [[2]], [[3]]]])}, fetch_list=[y])[0].ravel())  # [0. 2. 1. 3.]

# %% fluid.layers.space_to_depth
image = fluid.data("image", [None, 4, 4, 4], "float32")
y = fluid.layers.space_to_depth(image, blocksize=2)
print(exe.run(feed={"image": np.ones([1, 4, 4, 4], "float32")}, fetch_list=[y])[0].shape)  # (1, 16, 2, 2)

# %% fluid.layers.unfold
image = fluid.data("image", [None, 3, 8, 8], "float32")
y = fluid.layers.unfold(image, kernel_sizes=[3, 3], strides=1, paddings=1)
print(exe.run(feed={"image": np.ones([1, 3, 8, 8], "float32")}, fetch_list=[y])[0].shape)  # (1, 27, 64)

# %% fluid.layers.temporal_shift
frames = fluid.data("frames", [None, 4, 2, 2], "float32")  # two frames of each video follow each other
y = fluid.layers.temporal_shift(frames, seg_num=2, shift_ratio=0.25)
print(exe.run(feed={"frames": np.ones([4, 4, 2, 2], "float32")}, fetch_list=[y])[0].shape)  # (4, 4, 2, 2)

# %% fluid.layers.similarity_focus
x = fluid.data("x", [None, 3, 2, 2], "float32")
y = fluid.layers.similarity_focus(x, axis=1, indexes=[0])
print(exe.run(feed={"x": np.ones([1, 3, 2, 2], "float32")}, fetch_list=[y])[0].shape)  # (1, 3, 2, 2)

# %% fluid.layers.im2sequence
image = fluid.data("image", [None, 1, 4, 4], "float32")
y = fluid.layers.im2sequence(image, filter_size=2, stride=2)  # a sequence of patches for each image
(patches,) = exe.run(feed={"image": np.ones([3, 1, 4, 4], "float32")}, fetch_list=[y], return_numpy=False)
print(np.array(patches).shape, patches.recursive_sequence_lengths())  # (12, 4) [[4, 4, 4]]

# %% fluid.layers.row_conv
x = fluid.data("x", [None, 4], "float32", lod_level=1)
y = fluid.layers.row_conv(x, future_context_size=2)
exe.run(fluid.default_startup_program())
feed = {"x": fluid.create_lod_tensor(np.ones([5, 4], "float32"), [[3, 2]], fluid.CPUPlace())}
print(np.array(exe.run(feed=feed, fetch_list=[y], return_numpy=False)[0]).shape)  # (5, 4)

# %% fluid.layers.anchor_generator
features = fluid.data("features", [None, 8, 2, 3], "float32")
anchors, variances = fluid.layers.anchor_generator(
    features, anchor_sizes=[32.0, 64.0], aspect_ratios=[1.0], stride=[16.0, 16.0]
)
(boxes,) = exe.run(feed={"features": np.ones([1, 8, 2, 3], "float32")}, fetch_list=[anchors])
# height, width, anchors of a place, corners
print(boxes.shape)  # (2, 3, 2, 4)

# %% fluid.layers.prior_box
features = fluid.data("features", [None, 8, 2, 3], "float32")
image = fluid.data("image", [None, 3, 32, 48], "float32")
boxes, variances = fluid.layers.prior_box(features, image, min_sizes=[8.0], aspect_ratios=[1.0, 2.0])
feed = {"features": np.ones([1, 8, 2, 3], "float32"), "image": np.ones([1, 3, 32, 48], "float32")}
print(exe.run(feed=feed, fetch_list=[boxes])[0].shape)  # (2, 3, 2, 4)

# %% fluid.layers.density_prior_box
features = fluid.data("features", [None, 8, 2, 3], "float32")
image = fluid.data("image", [None, 3, 32, 48], "float32")
boxes, variances = fluid.layers.density_prior_box(
    features, image, densities=[2], fixed_sizes=[8.0], fixed_ratios=[1.0], flatten_to_2d=True
)
feed = {"features": np.ones([1, 8, 2, 3], "float32"), "image": np.ones([1, 3, 32, 48], "float32")}
print(exe.run(feed=feed, fetch_list=[boxes])[0].shape)  # (24, 4)

# %% fluid.layers.multi_box_head
image = fluid.data("image", [None, 3, 32, 32], "float32")
maps = [fluid.layers.pool2d(image, size, pool_stride=size) for size in (4, 8, 16)]
location, confidence, boxes, variances = fluid.layers.multi_box_head(
    maps, image, base_size=32, num_classes=4, aspect_ratios=[[1.0]] * 3, min_ratio=20, max_ratio=90
)
exe.run(fluid.default_startup_program())
found = exe.run(feed={"image": np.ones([2, 3, 32, 32], "float32")}, fetch_list=[location, confidence, boxes])
print([one.shape for one in found])  # [(2, 168, 4), (2, 168, 4), (168, 4)]

# %% fluid.layers.box_coder
priors = fluid.layers.assign(np.float32([[0, 0, 10, 10]]))
targets = fluid.layers.assign(np.float32([[0, 0, 10, 20]]))
codes = fluid.layers.box_coder(priors, [0.1, 0.1, 0.2, 0.2], targets, code_type="encode_center_size")
print(exe.run(fetch_list=[codes])[0].round(2).tolist())  # [[[0.0, 5.0, 0.0, 3.4700000286102295]]]

# %% fluid.layers.box_clip
boxes = fluid.data("boxes", [None, 4], "float32", lod_level=1)
info = fluid.data("info", [None, 3], "float32")  # height, width, scale
clipped = fluid.layers.box_clip(boxes, info)
feed = {"boxes": fluid.create_lod_tensor(np.float32([[-1, 2, 30, 9]]), [[1]], fluid.CPUPlace())}
feed["info"] = np.float32([[10, 20, 1]])
print(np.array(exe.run(feed=feed, fetch_list=[clipped], return_numpy=False)[0]).tolist())  # [[0.0, 2.0, 19.0, 9.0]]

# %% fluid.layers.box_decoder_and_assign
priors = fluid.data("priors", [None, 4], "float32")
variances = fluid.data("variances", [4], "float32")
deltas = fluid.data("deltas", [None, 8], "float32")  # four for each of two classes
scores = fluid.data("scores", [None, 2], "float32")
decoded, assigned = fluid.layers.box_decoder_and_assign(priors, variances, deltas, scores, box_clip=4.135)
feed = {"priors": np.float32([[0, 0, 9, 9]]), "variances": np.float32([0.1, 0.1, 0.2, 0.2])}
feed.update(deltas=np.zeros([1, 8], "float32"), scores=np.float32([[0.3, 0.7]]))
print(exe.run(feed=feed, fetch_list=[assigned])[0].tolist())  # [[0.0, 0.0, 9.0, 9.0]]

# %% fluid.layers.iou_similarity
x = fluid.layers.assign(np.float32([[0, 0, 2, 2]]))
y = fluid.layers.assign(np.float32([[0, 0, 2, 2], [1, 0, 3, 2]]))
print(exe.run(fetch_list=[fluid.layers.iou_similarity(x, y)])[0].round(3))  # [[1.    0.333]]

# %% fluid.layers.bipartite_match
similar = fluid.data("similar", [None, 3], "float32", lod_level=1)  # boxes of an image by priors
matched, distance = fluid.layers.bipartite_match(similar)
feed = {"similar": fluid.create_lod_tensor(np.float32([[0.1, 0.9, 0.3]]), [[1]], fluid.CPUPlace())}
print(exe.run(feed=feed, fetch_list=[matched])[0].tolist())  # [[-1, 0, -1]]

# %% fluid.layers.target_assign
boxes = fluid.data("boxes", [None, 1, 4], "float32", lod_level=1)
matched = fluid.data("matched", [None, 3], "int32")
targets, weights = fluid.layers.target_assign(boxes, matched, mismatch_value=0)
feed = {"boxes": fluid.create_lod_tensor(np.float32([[[1, 2, 3, 4]]]), [[1]], fluid.CPUPlace())}
feed["matched"] = np.int32([[-1, 0, -1]])
print([one.ravel().tolist() for one in exe.run(feed=feed, fetch_list=[targets, weights])])
# [[0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]

# %% fluid.layers.polygon_box_transform
x = fluid.data("x", [None, 8, 2, 2], "float32")
y = fluid.layers.polygon_box_transform(x)
print(exe.run(feed={"x": np.zeros([1, 8, 2, 2], "float32")}, fetch_list=[y])[0].shape)  # (1, 8, 2, 2)

# %% fluid.layers.multiclass_nms fluid.contrib.layers.multiclass_nms2
boxes = fluid.data("boxes", [None, 3, 4], "float32")
scores = fluid.data("scores", [None, 2, 3], "float32")  # class 0 is the background
kept = fluid.layers.multiclass_nms(boxes, scores, score_threshold=0.1, nms_top_k=10, keep_top_k=5)
kept2, index = fluid.contrib.layers.multiclass_nms2(
    boxes, scores, score_threshold=0.1, nms_top_k=10, keep_top_k=5, return_index=True
)
feed = {"boxes": np.float32([[[0, 0, 9, 9], [0, 0, 9, 8], [20, 20, 29, 29]]])}
feed["scores"] = np.float32([[[0.1, 0.2, 0.3], [0.9, 0.8, 0.7]]])
found = exe.run(feed=feed, fetch_list=[kept, index], return_numpy=False)
# class, score and corners of two boxes
print(np.array(found[0]).shape, np.array(found[1]).ravel())  # (2, 6) [0 2]

# %% fluid.layers.locality_aware_nms
boxes = fluid.data("boxes", [None, 3, 4], "float32")
scores = fluid.data("scores", [None, 1, 3], "float32")
kept = fluid.layers.locality_aware_nms(boxes, scores, score_threshold=0.1, nms_top_k=10, keep_top_k=5)
feed = {"boxes": np.float32([[[0, 0, 9, 9], [0, 0, 9, 8], [20, 20, 29, 29]]])}
feed["scores"] = np.float32([[[0.9, 0.8, 0.7]]])
print(np.array(exe.run(feed=feed, fetch_list=[kept], return_numpy=False)[0]).shape)  # (2, 6)

# %% fluid.layers.matrix_nms
boxes = fluid.data("boxes", [None, 3, 4], "float32")
scores = fluid.data("scores", [None, 2, 3], "float32")
kept = fluid.layers.matrix_nms(boxes, scores, score_threshold=0.1, post_threshold=0.2, nms_top_k=10, keep_top_k=5)
feed = {"boxes": np.float32([[[0, 0, 9, 9], [0, 0, 9, 8], [20, 20, 29, 29]]])}
feed["scores"] = np.float32([[[0.1, 0.2, 0.3], [0.9, 0.8, 0.7]]])
print(np.array(exe.run(feed=feed, fetch_list=[kept], return_numpy=False)[0]).shape)  # (2, 6)

# %% fluid.layers.detection_output
location = fluid.data("location", [None, 2, 4], "float32")
scores = fluid.data("scores", [None, 2, 2], "float32")
priors = fluid.data("priors", [2, 4], "float32")
variances = fluid.data("variances", [2, 4], "float32")
kept = fluid.layers.detection_output(location, scores, priors, variances)
feed = {"location": np.zeros([1, 2, 4], "float32"), "scores": np.float32([[[0.1, 0.9], [0.2, 0.8]]])}
feed["priors"] = np.float32([[0, 0, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9]])
feed["variances"] = np.float32([[0.1, 0.1, 0.2, 0.2]] * 2)
print(np.array(exe.run(feed=feed, fetch_list=[kept], return_numpy=False)[0]).shape)  # (2, 6)

# %% fluid.layers.ssd_loss
location = fluid.data("location", [None, 2, 4], "float32")
confidence = fluid.data("confidence", [None, 2, 3], "float32")
priors = fluid.data("priors", [2, 4], "float32")
boxes = fluid.data("boxes", [None, 4], "float32", lod_level=1)
labels = fluid.data("labels", [None, 1], "int64", lod_level=1)
variances = fluid.layers.assign(np.float32([[0.1, 0.1, 0.2, 0.2]] * 2))
loss = fluid.layers.ssd_loss(location, confidence, boxes, labels, priors, variances)
feed = {"location": np.zeros([1, 2, 4], "float32"), "confidence": np.zeros([1, 2, 3], "float32")}
feed["priors"] = np.float32([[0, 0, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9]])
feed["boxes"] = fluid.create_lod_tensor(np.float32([[0.5, 0.5, 0.9, 0.9]]), [[1]], fluid.CPUPlace())
feed["labels"] = fluid.create_lod_tensor(np.int64([[1]]), [[1]], fluid.CPUPlace())
print(exe.run(feed=feed, fetch_list=[loss])[0].round(3).tolist())  # [[2.197000026702881]]

# %% fluid.layers.yolo_box
x = fluid.data("x", [None, 14, 2, 2], "float32")  # two anchors of 5 + 2 classes
size = fluid.data("size", [None, 2], "int32")
boxes, scores = fluid.layers.yolo_box(
    x, size, anchors=[10, 13, 16, 30], class_num=2, conf_thresh=0.01, downsample_ratio=32
)
feed = {"x": np.zeros([1, 14, 2, 2], "float32"), "size": np.int32([[64, 64]])}
print([one.shape for one in exe.run(feed=feed, fetch_list=[boxes, scores])])  # [(1, 8, 4), (1, 8, 2)]

# %% fluid.layers.yolov3_loss
x = fluid.data("x", [None, 14, 2, 2], "float32")
boxes = fluid.data("boxes", [None, 1, 4], "float32")  # center and size, as shares of the image
labels = fluid.data("labels", [None, 1], "int32")
loss = fluid.layers.yolov3_loss(
    x, boxes, labels, [10, 13, 16, 30], anchor_mask=[0, 1], class_num=2, ignore_thresh=0.7, downsample_ratio=32
)
feed = {"x": np.zeros([1, 14, 2, 2], "float32"), "boxes": np.float32([[[0.5, 0.5, 0.3, 0.4]]])}
feed["labels"] = np.int32([[1]])
print(exe.run(feed=feed, fetch_list=[loss])[0].shape)  # (1,)

# %% fluid.layers.roi_pool
features = fluid.data("features", [None, 1, 4, 4], "float32")
rois = fluid.data("rois", [None, 4], "float32", lod_level=1)
y = fluid.layers.roi_pool(features, rois, pooled_height=1, pooled_width=1)
feed = {"features": np.arange(16, dtype="float32").reshape(1, 1, 4, 4)}
feed["rois"] = fluid.create_lod_tensor(np.float32([[0, 0, 1, 1]]), [[1]], fluid.CPUPlace())
print(exe.run(feed=feed, fetch_list=[y])[0].ravel())  # [5.]

# %% fluid.layers.roi_align
features = fluid.data("features", [None, 1, 4, 4], "float32")
rois = fluid.data("rois", [None, 4], "float32", lod_level=1)
y = fluid.layers.roi_align(features, rois, pooled_height=2, pooled_width=2)
feed = {"features": np.ones([1, 1, 4, 4], "float32")}
feed["rois"] = fluid.create_lod_tensor(np.float32([[0, 0, 2, 2]]), [[1]], fluid.CPUPlace())
print(exe.run(feed=feed, fetch_list=[y])[0].shape)  # (1, 1, 2, 2)

# %% fluid.layers.prroi_pool
features = fluid.data("features", [None, 1, 4, 4], "float32")
rois = fluid.data("rois", [None, 4], "float32", lod_level=1)
y = fluid.layers.prroi_pool(features, rois, pooled_height=2, pooled_width=2)
feed = {"features": np.ones([1, 1, 4, 4], "float32")}
feed["rois"] = fluid.create_lod_tensor(np.float32([[0, 0, 2, 2]]), [[1]], fluid.CPUPlace())
print(exe.run(feed=feed, fetch_list=[y])[0].shape)  # (1, 1, 2, 2)

# %% fluid.layers.psroi_pool
features = fluid.data("features", [None, 8, 4, 4], "float32")  # output channels times places
rois = fluid.data("rois", [None, 4], "float32", lod_level=1)
y = fluid.layers.psroi_pool(features, rois, output_channels=2, spatial_scale=1.0, pooled_height=2, pooled_width=2)
feed = {"features": np.ones([1, 8, 4, 4], "float32")}
feed["rois"] = fluid.create_lod_tensor(np.float32([[0, 0, 2, 2]]), [[1]], fluid.CPUPlace())
print(exe.run(feed=feed, fetch_list=[y])[0].shape)  # (1, 2, 2, 2)

# %% fluid.layers.deformable_roi_pooling
features = fluid.data("features", [None, 1, 4, 4], "float32")
rois = fluid.data("rois", [None, 4], "float32", lod_level=1)
shifts = fluid.data("shifts", [None, 2, 2, 2], "float32")
y = fluid.layers.deformable_roi_pooling(features, rois, shifts, pooled_height=2, pooled_width=2)
feed = {"features": np.ones([1, 1, 4, 4], "float32"), "shifts": np.zeros([1, 2, 2, 2], "float32")}
feed["rois"] = fluid.create_lod_tensor(np.float32([[0, 0, 2, 2]]), [[1]], fluid.CPUPlace())
print(exe.run(feed=feed, fetch_list=[y])[0].shape)  # (1, 1, 2, 2)

# %% fluid.layers.roi_perspective_transform
features = fluid.data("features", [None, 1, 8, 8], "float32")
rois = fluid.data("rois", [None, 8], "float32", lod_level=1)  # four corners
y, mask, matrix = fluid.layers.roi_perspective_transform(features, rois, transformed_height=4, transformed_width=4)
feed = {"features": np.ones([1, 1, 8, 8], "float32")}
feed["rois"] = fluid.create_lod_tensor(np.float32([[1, 1, 6, 1, 6, 6, 1, 6]]), [[1]], fluid.CPUPlace())
print([np.array(one).shape for one in exe.run(feed=feed, fetch_list=[y, mask, matrix], return_numpy=False)])
# [(1, 1, 4, 4), (1, 1, 4, 4), (1, 9)]

# %% fluid.nets.img_conv_group
image = fluid.data("image", [None, 3, 8, 8], "float32")
y = fluid.nets.img_conv_group(image, conv_num_filter=[4, 4], pool_size=2, pool_stride=2, conv_act="relu")
exe.run(fluid.default_startup_program())
print(exe.run(feed={"image": np.ones([1, 3, 8, 8], "float32")}, fetch_list=[y])[0].shape)  # (1, 4, 4, 4)

# %% fluid.nets.simple_img_conv_pool
image = fluid.data("image", [None, 1, 28, 28], "float32")
y = fluid.nets.simple_img_conv_pool(image, num_filters=4, filter_size=5, pool_size=2, pool_stride=2, act="relu")
exe.run(fluid.default_startup_program())
print(exe.run(feed={"image": np.ones([1, 1, 28, 28], "float32")}, fetch_list=[y])[0].shape)  # (1, 4, 12, 12)
