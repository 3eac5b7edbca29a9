"""The operators that run in 16 bits."""

from collections.abc import Iterable

from jfluid import errors

# Fluid's lists: operators that gain from 16 bits, operators that need float32, and operators that follow the
# operators before them. An operator on no list runs in float32.
WHITE = frozenset({"conv2d", "matmul", "mul"})
BLACK = frozenset(
    {
        "cos_sim",
        "cross_entropy",
        "cross_entropy2",
        "exp",
        "log",
        "mean",
        "sigmoid_cross_entropy_with_logits",
        "softmax",
        "softmax_with_cross_entropy",
        "square",
        "sum",
    }
)
GRAY = frozenset(
    {
        "batch_norm",
        "cast",
        "dropout",
        "elementwise_add",
        "elementwise_div",
        "elementwise_floordiv",
        "elementwise_max",
        "elementwise_min",
        "elementwise_mod",
        "elementwise_mul",
        "elementwise_pow",
        "elementwise_sub",
        "fill_constant",
        "flatten2",
        "gather",
        "gaussian_random",
        "gaussian_random_batch_size_like",
        "get_tensor_from_selected_rows",
        "leaky_relu",
        "lookup_table",
        "pool2d",
        "pool3d",
        "rank",
        "relu",
        "relu6",
        "reshape2",
        "scale",
        "sigmoid",
        "sign",
        "slice",
        "soft_relu",
        "stack",
        "tanh",
        "top_k",
        "transpose2",
        "uniform_random_batch_size_like",
        "unstack",
    }
)


class AutoMixedPrecisionLists:
    """Fluid's lists of operators, with the user's changes.

    Args:
        custom_white_list: operator types to run in 16 bits.
        custom_black_list: operator types to run in float32.
        custom_black_varnames: names of variables; operators that read or write one run in float32.

    Raises ProgramError when an operator type is on both custom lists.
    """

    def __init__(
        self,
        custom_white_list: Iterable[str] | None = None,
        custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None,
    ):
        white, black = set(custom_white_list or ()), set(custom_black_list or ())
        if white & black:
            raise errors.ProgramError(
                f"mixed precision: {', '.join(sorted(white & black))} on both custom_white_list and custom_black_list"
            )
        self.white_list = (set(WHITE) | white) - black
        self.black_list = (set(BLACK) | black) - white
        self.gray_list = set(GRAY) - white - black
        self.black_varnames = set(custom_black_varnames or ())
