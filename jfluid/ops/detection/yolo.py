"""YOLOv3: boxes from its feature maps, and its loss."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops.registry import Float, Int, Ints, op

# Smaller ground truth is padding.
_NO_SIZE = 1e-6


def _feature_map(op_type: str, x: Array, boxes: int, classes: int) -> Array:
    """Return x as [images, boxes, 5 + classes, height, width]. Raises ShapeError."""
    if x.ndim != 4 or x.shape[1] != boxes * (5 + classes):
        raise errors.ShapeError(
            f"{op_type}: expected X [images, {boxes * (5 + classes)}, height, width], 5 numbers and "
            f"{classes} classes for each of {boxes} anchors, found {list(x.shape)}"
        )
    return x.reshape(x.shape[0], boxes, 5 + classes, *x.shape[2:])


def _anchor_sizes(op_type: str, anchors: tuple[int, ...]) -> np.ndarray:
    """Return the anchors as [number, 2]. Raises ShapeError."""
    if not anchors or len(anchors) % 2 or min(anchors) <= 0:
        raise errors.ShapeError(f"{op_type}: expected anchors as widths and heights in turn, found {list(anchors)}")
    return np.reshape(anchors, (-1, 2))


def _centres(maps: Array, scale: float) -> tuple[Array, Array]:
    """Return x and y of the centres in shares of the image: [images, boxes, height, width] each.

    As in Fluid both are counted in rows of the map.
    """
    height, width = maps.shape[3:]
    shift = -0.5 * (scale - 1)
    across = jnp.arange(width, dtype=maps.dtype)
    down = jnp.arange(height, dtype=maps.dtype)[:, None]
    x = (across + jax.nn.sigmoid(maps[:, :, 0]) * scale + shift) / height
    return x, (down + jax.nn.sigmoid(maps[:, :, 1]) * scale + shift) / height


def _sizes(maps: Array, anchors: np.ndarray, input_size: int) -> tuple[Array, Array]:
    """Return width and height of the boxes in shares of the image."""
    base = jnp.asarray(anchors[:, :, None, None], maps.dtype)
    size = jnp.exp(maps[:, :, 2:4]) * base / input_size
    return size[:, :, 0], size[:, :, 1]


@op("yolo_box", ins=("X", "ImgSize"), outs=("Boxes", "Scores"), grad=False, rows="map")
def yolo_box(
    x: Array,
    image_size: Array,
    *,
    anchors: Ints,
    class_num: Int,
    conf_thresh: Float,
    downsample_ratio: Int,
    clip_bbox: bool = True,
    scale_x_y: float = 1.0,
) -> tuple[Array, Array]:
    """Return YOLO boxes [images, boxes, 4] and scores [images, boxes, classes].

    Boxes are corners in pixels of images of the sizes [images, 2], height and width. Both are zero if the
    confidence is below `conf_thresh`.
    """
    sizes = _anchor_sizes("yolo_box", anchors)
    maps = _feature_map("yolo_box", x, len(sizes), class_num)
    if image_size.shape != (x.shape[0], 2):
        raise errors.ShapeError(f"yolo_box: expected ImgSize [{x.shape[0]}, 2], found {list(image_size.shape)}")
    height, width = (image_size[:, i].astype(x.dtype)[:, None, None, None] for i in (0, 1))
    centre_x, centre_y = _centres(maps, scale_x_y)
    box_width, box_height = _sizes(maps, sizes, downsample_ratio * x.shape[2])
    corners = [
        (centre_x - box_width / 2) * width,
        (centre_y - box_height / 2) * height,
        (centre_x + box_width / 2) * width,
        (centre_y + box_height / 2) * height,
    ]
    if clip_bbox:
        corners[:2] = [jnp.maximum(c, 0) for c in corners[:2]]
        corners[2:] = [jnp.minimum(c, n - 1) for c, n in zip(corners[2:], (width, height))]
    confidence = jax.nn.sigmoid(maps[:, :, 4])
    sure = confidence >= conf_thresh
    boxes = jnp.where(sure[..., None], jnp.stack(corners, -1), 0)
    scores = confidence[:, :, None] * jax.nn.sigmoid(maps[:, :, 5:])
    scores = jnp.moveaxis(jnp.where(sure[:, :, None], scores, 0), 2, -1)
    return boxes.reshape(x.shape[0], -1, 4), scores.reshape(x.shape[0], -1, class_num)


def _cross_entropy(logits: Array, target: Array | float) -> Array:
    return jax.nn.softplus(logits) - logits * target


def _share(width: Array, height: Array, area: Array) -> Array:
    """Return the IoU of boxes from the size of the intersection and the sum of both areas."""
    common = jnp.where((width < 0) | (height < 0), 0, width * height)
    return common / (area - common)


def _best_overlap(maps: Array, truth: Array, sizes: np.ndarray, scale: float, side: int) -> Array:
    """Return the most that each predicted box overlaps ground truth: [images, boxes, h, w]."""
    x, y = (v[:, None] for v in _centres(maps, scale))
    w, h = (v[:, None] for v in _sizes(maps, sizes, side))
    real = jnp.all(truth[..., 2:] > _NO_SIZE, axis=-1)
    tx, ty, tw, th = (truth[:, :, i, None, None, None] for i in range(4))
    width = jnp.minimum(x + w / 2, tx + tw / 2) - jnp.maximum(x - w / 2, tx - tw / 2)
    height = jnp.minimum(y + h / 2, ty + th / 2) - jnp.maximum(y - h / 2, ty - th / 2)
    share = _share(width, height, w * h + tw * th)
    return jnp.max(jnp.where(real[:, :, None, None, None], share, 0), axis=1, initial=0)


@op(
    "yolov3_loss",
    ins=("X", "GTBox", "GTLabel", "GTScore?"),
    outs=("Loss", "ObjectnessMask~", "GTMatchMask~"),
    nograd=("GTBox", "GTLabel", "GTScore"),
    rows="map",
)
def yolov3_loss(
    x: Array,
    truth: Array,
    label: Array,
    weight: Array | None,
    *,
    anchors: Ints,
    anchor_mask: Ints,
    class_num: Int,
    ignore_thresh: Float,
    downsample_ratio: Int,
    use_label_smooth: bool = True,
    scale_x_y: float = 1.0,
) -> tuple[Array, Array, Array]:
    """Return the YOLOv3 loss [images], the objectness mask and the matched anchors (Redmon and Farhadi, 2018).

    The mask has the weight of each predicted box as an object, 0 for none, -1 for an ignored box. A ground
    truth's matched anchor is -1 if it is not on this map.

    Ground truth is x, y of the centre, width and height in shares of the image; centres outside
    count as in the last cell. Where several have one cell and anchor all are in the loss, but, as
    in Fluid, only the last one's weight and gradient count.
    """
    sizes, chosen = _anchor_sizes("yolov3_loss", anchors), list(anchor_mask)
    _check_truth(x, truth, label, weight, len(sizes), chosen)
    maps = _feature_map("yolov3_loss", x, len(chosen), class_num)
    images, side = x.shape[0], downsample_ratio * x.shape[2]
    weight = jnp.ones(truth.shape[:2], x.dtype) if weight is None else weight
    match, anchor = _matches(truth, sizes, chosen, side)
    matched = match >= 0
    cell = jnp.clip((truth[..., :2] * x.shape[2]).astype(jnp.int32), 0, x.shape[2] - 1)
    place = jnp.arange(images)[:, None], jnp.maximum(match, 0), cell[..., 1], cell[..., 0]
    number = jnp.where(matched, jnp.arange(truth.shape[1], dtype=jnp.int32), -1)
    last = jnp.full((images, len(chosen), *x.shape[2:]), -1, jnp.int32).at[place].max(number)
    own = jnp.moveaxis(maps, 2, -1)[place]  # [images, truths, 5 + classes]
    own = jnp.where((last[place] == number)[..., None], own, jax.lax.stop_gradient(own))

    target = truth[..., :2] * x.shape[2] - cell.astype(x.dtype)
    base = jnp.asarray(sizes, x.dtype)[anchor]
    size = jnp.log(jnp.where(matched[..., None], truth[..., 2:] * side / base, 1))
    where = _cross_entropy(own[..., :2], target) + jnp.abs(size - own[..., 2:4])
    where = where.sum(-1) * (2 - truth[..., 2] * truth[..., 3])
    smooth = min(1 / class_num, 1 / 40) if use_label_smooth else 0.0
    hit = label[..., None] == jnp.arange(class_num, dtype=label.dtype)
    kind = _cross_entropy(own[..., 5:], jnp.where(hit, 1 - smooth, smooth).astype(x.dtype)).sum(-1)
    loss = jnp.where(matched, (where + kind) * weight, 0).sum(1)

    overlap = _best_overlap(jax.lax.stop_gradient(maps), truth, sizes[chosen], scale_x_y, side)
    mask = jnp.where(overlap > ignore_thresh, -1, 0).astype(x.dtype)
    by_truth = weight[jnp.arange(images)[:, None, None, None], jnp.maximum(last, 0)]
    mask = jnp.where(last >= 0, by_truth.astype(x.dtype), mask)
    as_object = _cross_entropy(maps[:, :, 4], 1.0) * mask
    as_none = jnp.where(mask > -0.5, _cross_entropy(maps[:, :, 4], 0.0), 0)
    loss += jnp.where(mask > 1e-5, as_object, as_none).sum((1, 2, 3))
    return loss, mask, match


def _matches(truth: Array, sizes: np.ndarray, chosen: list[int], side: int) -> tuple[Array, Array]:
    """Return the place in `chosen` of each ground truth's best anchor, or -1, and the anchor.

    Both are int32 [images, truths].
    """
    base = jnp.asarray(sizes, truth.dtype) / side
    shared = jnp.minimum(truth[..., None, 2:], base)
    area = truth[..., None, 2] * truth[..., None, 3] + base[:, 0] * base[:, 1]
    anchor = jnp.argmax(_share(shared[..., 0], shared[..., 1], area), axis=-1).astype(jnp.int32)
    place = np.full(len(sizes), -1, np.int32)
    for i in reversed(range(len(chosen))):
        place[chosen[i]] = i
    real = jnp.all(truth[..., 2:] > _NO_SIZE, axis=-1)
    return jnp.where(real, jnp.asarray(place)[anchor], -1), anchor


def _check_truth(x: Array, truth: Array, label: Array, weight: Array | None, anchors: int, chosen: list[int]) -> None:
    """Raise ShapeError if ground truth and anchors do not match."""
    if not chosen or not all(0 <= i < anchors for i in chosen):
        raise errors.ShapeError(
            f"yolov3_loss: expected anchor_mask to number some of {anchors} anchors, found {chosen}"
        )
    if x.ndim != 4 or x.shape[2] != x.shape[3]:
        raise errors.ShapeError(f"yolov3_loss: expected X as high as it is wide, found {list(x.shape)}")
    if truth.ndim != 3 or truth.shape[0] != x.shape[0] or truth.shape[2] != 4:
        raise errors.ShapeError(f"yolov3_loss: expected GTBox [{x.shape[0]}, boxes, 4], found {list(truth.shape)}")
    for slot, value in (("GTLabel", label), ("GTScore", weight)):
        if value is not None and value.shape != truth.shape[:2]:
            raise errors.ShapeError(f"yolov3_loss: expected {slot} {list(truth.shape[:2])}, found {list(value.shape)}")
