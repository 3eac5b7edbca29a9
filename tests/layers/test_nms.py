"""Layers of non-maximum suppression."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers


def run(out, feed):
    (found,) = fluid.Executor().run(feed=feed, fetch_list=[out], return_numpy=False)
    return np.array(found), found.lod()


def test_multiclass_nms():
    boxes, scores = fluid.data("boxes", [-1, 3, 4]), fluid.data("scores", [-1, 2, 3])
    out = layers.multiclass_nms(boxes, scores, 0.3, 10, 10)
    assert out.name == "multiclass_nms_0.tmp_0" and out.stop_gradient
    assert (out.shape, out.lod_level) == ((-1, 6), 1)
    feed = {
        "boxes": np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], "float32"),
        "scores": np.array([[[1, 1, 1], [0.5, 0.6, 0.4]]], "float32"),
    }
    rows, lod = run(out, feed)
    np.testing.assert_allclose(rows, [[1, 0.6, 0, 0, 1, 0.9], [1, 0.4, 2, 2, 3, 3]], rtol=1e-6)
    assert lod == [[0, 2]]
    rows, lod = run(out, {**feed, "scores": feed["scores"] * 0})
    np.testing.assert_array_equal(rows, [[-1]])  # Fluid's sign that nothing was found
    assert lod == [[0, 1]]


def test_locality_aware_and_matrix_nms():
    boxes, scores = fluid.data("boxes", [-1, 3, 4]), fluid.data("scores", [-1, 1, 3])
    merged = layers.locality_aware_nms(boxes, scores, 0.1, 10, 10)
    fallen = layers.matrix_nms(boxes, scores, 0.1, 0.2, 10, 10, background_label=-1, return_index=True)
    feed = {
        "boxes": np.array([[[0, 0, 2, 2], [0, 0, 2, 1], [4, 4, 5, 5]]], "float32"),
        "scores": np.array([[[0.25, 0.75, 0.4]]], "float32"),
    }
    rows, lod = run(merged, feed)
    np.testing.assert_allclose(rows, [[0, 1, 0, 0, 2, 1.25], [0, 0.4, 4, 4, 5, 5]], rtol=1e-6)
    assert lod == [[0, 2]]
    rows, _ = run(fallen[0], feed)
    np.testing.assert_allclose(rows[:, :2], [[0, 0.75], [0, 0.4]], rtol=1e-6)
    assert run(fallen[1], feed)[0].tolist() == [[1], [2]]
    assert [v.name for v in fallen] == ["matrix_nms_0.tmp_0", "matrix_nms_0.tmp_1"]


def test_retinanet_detection_output():
    out = layers.retinanet_detection_output(
        [fluid.data("boxes", [-1, 1, 4])],
        [fluid.data("scores", [-1, 1, 2])],
        [fluid.data("anchors", [1, 4])],
        fluid.data("info", [-1, 3]),
    )
    feed = {
        "boxes": np.zeros((1, 1, 4), "float32"),
        "scores": np.array([[[0.3, 0]]], "float32"),
        "anchors": np.array([[2, 2, 9, 20]], "float32"),
        "info": np.array([[16, 24, 2]], "float32"),
    }
    rows, lod = run(out, feed)
    np.testing.assert_allclose(rows, [[1, 0.3, 1, 1, 4.5, 7]], rtol=1e-6)
    assert lod == [[0, 1]]
    with pytest.raises(TypeError, match="bboxes: expected list, found Variable"):
        layers.retinanet_detection_output(out, [out], [out], out)


def test_yolo_box():
    x, size = fluid.data("x", [-1, 6, 2, 2]), fluid.data("size", [-1, 2], "int32")
    boxes, scores = layers.yolo_box(x, size, [8, 8], 1, 0.01, 16)
    assert [boxes.name, scores.name] == ["yolo_box_0.tmp_0", "yolo_box_0.tmp_1"]
    feed = {"x": np.zeros((1, 6, 2, 2), "float32"), "size": np.array([[32, 64]], "int32")}
    found, chances = fluid.Executor().run(feed=feed, fetch_list=[boxes, scores])
    np.testing.assert_allclose(found[0, :2], [[8, 4, 24, 12], [40, 4, 56, 12]])
    np.testing.assert_allclose(chances, np.full((1, 4, 1), 0.25))
    with pytest.raises(TypeError, match="anchors: expected list"):
        layers.yolo_box(x, size, 8, 1, 0.01, 16)
