"""Layers that pool regions of interest."""

from collections.abc import Sequence

from jfluid.ir.variable import Variable
from jfluid.layers.helper import check_variable, emit

__all__ = ["deformable_roi_pooling", "prroi_pool", "psroi_pool", "roi_align", "roi_perspective_transform", "roi_pool"]


def roi_align(
    input: Variable,
    rois: Variable,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    name: str | None = None,
    rois_lod: Variable | None = None,
) -> Variable:
    """Average samples of a feature map, interpolated between pixels, over the bins of each box.

    Args:
        input: float [N, C, H, W].
        rois: [boxes, 4], (x1, y1, x2, y2) in pixels of the image, with one sequence of boxes for each of the N
            images as its LoD. Boxes get no gradient.
        pooled_height: the number of rows of bins of a box. A box counts as at least one pixel of `input` high and
            wide.
        pooled_width: the number of columns of bins of a box.
        spatial_scale: pixels of `input` for one pixel of the image.
        sampling_ratio: how many samples a bin has in each direction; as many as it is pixels long, rounded up,
            where it is not positive.
        name: the name of the result.
        rois_lod: integers [N + 1], where the boxes of each image begin and the last end, in place of a LoD.

    Returns:
        [boxes, C, pooled_height, pooled_width].

    Raises ShapeError for other shapes, and, when the program runs, for a different number of images.
    Source: He et al., Mask R-CNN (arXiv:1703.06870).
    """
    return emit(
        "roi_align",
        {"X": input, "ROIs": rois, "RoisLod": rois_lod},
        {
            "pooled_height": pooled_height,
            "pooled_width": pooled_width,
            "spatial_scale": float(spatial_scale),
            "sampling_ratio": sampling_ratio,
        },
        name=name,
    )


def roi_pool(
    input: Variable,
    rois: Variable,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    rois_lod: Variable | None = None,
) -> Variable:
    """Return the maximum of each bin of each box, with corners rounded to pixels.

    For arguments and result see `roi_align`; a bin outside the feature map is 0.
    Source: Girshick, Fast R-CNN (arXiv:1504.08083).
    """
    return emit(
        "roi_pool",
        {"X": input, "ROIs": rois, "RoisLod": rois_lod},
        {"pooled_height": pooled_height, "pooled_width": pooled_width, "spatial_scale": float(spatial_scale)},
        outs=("Out", "Argmax"),
    )[0]


def prroi_pool(
    input: Variable,
    rois: Variable,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
    batch_roi_nums: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Average the bilinearly interpolated feature map over each bin of each box, by its integral.

    Boxes have gradients.

    Args:
        input: see `roi_align`.
        rois: see `roi_align`.
        spatial_scale: see `roi_align`.
        pooled_height: see `roi_align`.
        pooled_width: see `roi_align`.
        batch_roi_nums: integers [N], the number of boxes of each image, in place of a LoD.
        name: see `jfluid.layers`.

    Returns:
        [boxes, C, pooled_height, pooled_width]; zero for a box without area.

    For errors see `roi_align`. Source: Jiang et al., Acquisition of Localization Confidence
    (arXiv:1807.11590).
    """
    return emit(
        "prroi_pool",
        {"X": input, "ROIs": rois, "BatchRoINums": batch_roi_nums},
        {"spatial_scale": float(spatial_scale), "pooled_height": pooled_height, "pooled_width": pooled_width},
        name=name,
    )


def psroi_pool(
    input: Variable,
    rois: Variable,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    name: str | None = None,
) -> Variable:
    """Average the pixels in each bin of each box; each bin reads separate channels.

    Args:
        input: float [N, output_channels * pooled_height * pooled_width, H, W]; channel
            (c * pooled_height + row) * pooled_width + column is for output channel c of that bin.
        rois: see `roi_align`.
        output_channels: the number of channels of the result.
        spatial_scale: see `roi_align`.
        pooled_height: see `roi_align`.
        pooled_width: see `roi_align`.
        name: see `jfluid.layers`.

    Returns:
        [boxes, output_channels, pooled_height, pooled_width].

    For errors see `roi_align`. Source: Dai et al., R-FCN (arXiv:1605.06409).
    """
    return emit(
        "psroi_pool",
        {"X": input, "ROIs": rois},
        {
            "output_channels": output_channels,
            "spatial_scale": float(spatial_scale),
            "pooled_height": pooled_height,
            "pooled_width": pooled_width,
        },
        name=name,
    )


def deformable_roi_pooling(
    input: Variable,
    rois: Variable,
    trans: Variable,
    no_trans: bool = False,
    spatial_scale: float = 1.0,
    group_size: Sequence[int] = (1, 1),
    pooled_height: int = 1,
    pooled_width: int = 1,
    part_size: Sequence[int] | None = None,
    sample_per_part: int = 1,
    trans_std: float = 0.1,
    position_sensitive: bool = False,
    name: str | None = None,
) -> Variable:
    """Average samples over the bins of each box; bins move by computed offsets.

    Args:
        input: see `roi_align`.
        rois: see `input`.
        trans: [boxes, 2 * classes, *part_size], how far bins move across and down, in sizes of the box; each
            class of channels has its own offsets.
        no_trans: leave `trans` out of account.
        spatial_scale: see `input`.
        group_size: [rows, columns] of a grid, each place of which has channels of its own.
        pooled_height: see `input`.
        pooled_width: see `input`.
        part_size: [rows, columns] of the offsets; None: one for each bin.
        sample_per_part: how many samples a bin has in each direction.
        trans_std: factor of the offsets.
        position_sensitive: True if the channels of `input` are those of the result times the bins; `group_size`
            says which are whose.
        name: see `input`.

    Returns:
        [boxes, channels, pooled_height, pooled_width].

    Gradients are those of this function; those of Fluid's CPU kernel are others where bins move.
    Raises ShapeError for other shapes. Source: Dai et al., Deformable Convolutional Networks
    (arXiv:1703.06211).
    """
    check_variable(input, "deformable_roi_pooling", "input")
    channels = input.shape[1]
    if position_sensitive:
        channels //= pooled_height * pooled_width
    parts = [pooled_height, pooled_width] if part_size is None else list(part_size)
    return emit(
        "deformable_psroi_pooling",
        {"Input": input, "ROIs": rois, "Trans": trans},
        {
            "no_trans": no_trans,
            "spatial_scale": float(spatial_scale),
            "output_dim": channels,
            "group_size": list(group_size),
            "pooled_height": pooled_height,
            "pooled_width": pooled_width,
            "part_size": parts,
            "sample_per_part": sample_per_part,
            "trans_std": float(trans_std),
        },
        outs=("Output", "TopCount"),
        name=name,
    )[0]


def roi_perspective_transform(
    input: Variable,
    rois: Variable,
    transformed_height: int,
    transformed_width: int,
    spatial_scale: float = 1.0,
    name: str | None = None,
) -> tuple[Variable, Variable, Variable]:
    """Sample quadrangles of images as rectangles.

    Args:
        input: float [N, C, H, W].
        rois: [boxes, 8], the corners (x, y) of each quadrangle, clockwise from the top left, with one sequence of
            boxes for each image as its LoD.
        transformed_height: the height of the result.
        transformed_width: the width of the result. A quadrangle keeps its ratio of width to height as far as that
            width goes.
        spatial_scale: pixels of `input` for one pixel of the image.
        name: the name of the result.

    Returns:
        [boxes, C, transformed_height, transformed_width], zero outside of quadrangle or image; int32
            [boxes, 1, transformed_height, transformed_width], 1 inside; and the matrices [boxes, 9]
            that lead from the result to the feature map.

    Raises ShapeError for other shapes.
    """
    out, mask, matrix, _, _ = emit(
        "roi_perspective_transform",
        {"X": input, "ROIs": rois},
        {
            "transformed_height": transformed_height,
            "transformed_width": transformed_width,
            "spatial_scale": float(spatial_scale),
        },
        outs={"Out": 1, "Mask": 1, "TransformMatrix": 1, "Out2InIdx": 1, "Out2InWeights": 1},
        name=name,
    )
    return out[0], mask[0], matrix[0]
