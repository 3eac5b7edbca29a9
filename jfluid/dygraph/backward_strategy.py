"""Options of a backward pass."""

__all__ = ["BackwardStrategy"]


class BackwardStrategy:
    """Settings of `backward` and `grad`.

    Attributes:
        sort_sum_gradient: whether the gradients of a variable that is used several times are summed
            in the order in which the operators ran. Here they always are, so that it has no effect.
    """

    __slots__ = ("sort_sum_gradient",)

    def __init__(self) -> None:
        self.sort_sum_gradient = False
