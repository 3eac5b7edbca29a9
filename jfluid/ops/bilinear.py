"""Values of images between their pixels."""

import jax.numpy as jnp
from jax import Array


def between_pixels(images: Array, image: Array, y: Array, x: Array) -> Array:
    """Interpolate images bilinearly at points (y, x); pixels outside an image are zero.

    Gradients flow to the images and to the points.

    Args:
        images: [images, height, width, channels].
        image: integers that broadcast against y: the index of each point's image.
        y: vertical positions in pixels.
        x: horizontal positions in pixels, of the shape of y.

    Returns:
        Values [*y.shape, channels].
    """
    number, height, width, channels = images.shape
    rows = images.reshape(number * height * width, channels)
    top, left = jnp.floor(y), jnp.floor(x)
    # Positions far outside, and NaN, are clipped to the range of integers.
    whole_top, whole_left = (
        jnp.nan_to_num(jnp.clip(v, -2, n + 1), nan=-2).astype(jnp.int32) for v, n in ((top, height), (left, width))
    )
    total = jnp.zeros((), images.dtype)
    for down in (0, 1):
        for right in (0, 1):
            row, column = whole_top + down, whole_left + right
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            weight = (y - top if down else 1 - (y - top)) * (x - left if right else 1 - (x - left))
            index = (image * height + jnp.clip(row, 0, height - 1)) * width
            value = rows[index + jnp.clip(column, 0, width - 1)]
            total = total + jnp.where(inside[..., None], weight[..., None] * value, 0)
    return total
