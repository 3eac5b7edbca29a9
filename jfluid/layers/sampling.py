"""Losses over many classes: noise-contrastive estimation, hierarchical sigmoid, sampled softmax."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.initializer import NumpyArrayInitializer
from jfluid.ir.variable import Variable
from jfluid.layers.embedding import one_hot
from jfluid.layers.helper import LayerHelper, check_variable
from jfluid.param_attr import ParamAttr

__all__ = ["hsigmoid", "nce", "sampled_softmax_with_cross_entropy"]

_SAMPLERS = {"uniform": 0, "log_uniform": 1, "custom_dist": 2}


def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Variable:
    """Return the noise-contrastive estimation loss [batch, 1] (Gutmann & Hyvärinen 2010).

    Args:
        input: [batch, width].
        label: class numbers, int64 [batch, labels of a row].
        num_total_classes: the number of classes.
        sample_weight: factors of the losses, [batch, 1]; ones when None.
        param_attr: ParamAttr of the weights, [num_total_classes, width].
        bias_attr: ParamAttr of the bias, [num_total_classes, 1]; False for none.
        num_neg_samples: number of noise classes drawn for each row; 10 when None.
        name: prefix of the names of the parameters.
        sampler: distribution of the noise classes: "uniform", "log_uniform" or "custom_dist".
        custom_dist: the probabilities of all classes, for "custom_dist".
        seed: 0 draws new classes in each step.
        is_sparse: True for a sparse gradient of the weights, with the used rows only.

    Raises ProgramError for an unknown sampler, or a `custom_dist` of a wrong length.
    """
    check_variable(input, "nce", "input")
    number = sampler_number(sampler)
    helper = LayerHelper("nce", input=input, param_attr=param_attr, bias_attr=bias_attr, name=name)
    weight = helper.create_parameter(
        attr=helper.param_attr, shape=[num_total_classes, input.shape[1]], is_bias=False, dtype=input.dtype
    )
    inputs: dict[str, Any] = {"Input": input, "Label": label, "Weight": weight}
    if helper.bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(
            attr=helper.bias_attr, shape=[num_total_classes, 1], is_bias=True, dtype=input.dtype
        )
    if sampler == "custom_dist":
        inputs |= class_distribution(helper, custom_dist, num_total_classes)
    if sample_weight is not None:
        inputs["SampleWeight"] = sample_weight
    cost, logits = (helper.create_variable_for_type_inference(input.dtype) for _ in range(2))
    labels = helper.create_variable_for_type_inference(label.dtype)
    helper.append_op(
        type="nce",
        inputs=inputs,
        outputs={"Cost": cost, "SampleLogits": logits, "SampleLabels": labels},
        attrs={
            "num_total_classes": num_total_classes,
            "num_neg_samples": int(num_neg_samples or 10),
            "seed": seed,
            "sampler": number,
            "is_sparse": is_sparse,
            "remote_prefetch": is_sparse,
        },
    )
    return cost / (int(num_neg_samples or 10) + 1)


def sampler_number(sampler: str) -> int:
    """Return the number that the operator `nce` knows a sampler by.

    Raises ProgramError for a different name.
    """
    if sampler not in _SAMPLERS:
        raise errors.ProgramError(f"nce, sampler: expected one of {', '.join(_SAMPLERS)}, found {sampler!r}")
    return _SAMPLERS[sampler]


def class_distribution(helper: LayerHelper, custom_dist: Any, classes: int) -> dict[str, Variable | None]:
    """Return persistable variables with the probabilities and their alias table (Walker), as Fluid's kernel reads."""
    probabilities = np.asarray(custom_dist if custom_dist is not None else [], np.float64)
    if probabilities.shape != (classes,):
        raise errors.ProgramError(f"nce, custom_dist: expected {classes} probabilities, found {probabilities.size}")
    alias, shares = np.full(classes, -1, np.int32), probabilities * classes
    small, large = deque(np.flatnonzero(shares < 1)), deque(np.flatnonzero(shares > 1))
    while small and large:
        low, high = small.popleft(), large.popleft()
        alias[low] = high
        shares[high] -= 1 - shares[low]
        if shares[high] != 1:
            (small if shares[high] < 1 else large).append(high)
    shares[alias < 0] = 1  # remainders of rounding
    found: dict[str, Variable | None] = {}
    for slot, values in (
        ("CustomDistProbs", probabilities.astype(np.float32)),
        ("CustomDistAlias", alias),
        ("CustomDistAliasProbs", shares.astype(np.float32)),
    ):
        found[slot] = helper.create_parameter(
            attr=ParamAttr(),
            shape=list(values.shape),
            dtype=values.dtype,
            default_initializer=NumpyArrayInitializer(values),
            stop_gradient=True,
        )
    return found


def hsigmoid(
    input: Variable,
    label: Variable,
    num_classes: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> Variable:
    """Return the hierarchical sigmoid loss [batch, 1] (Morin & Bengio 2005).

    It is the loss of the binary decisions on the path to a label in a tree.

    Args:
        input: [batch, width].
        label: class numbers, int64 [batch, 1].
        num_classes: the number of leaves of a complete binary tree; with `is_custom`, of the inner
            nodes of the given tree.
        param_attr: ParamAttr of the weights of inner nodes, [num_classes - 1, width]; with
            `is_custom`, [num_classes, width].
        bias_attr: ParamAttr of the bias, one number for each inner node; False for none.
        name: prefix of the names of the parameters.
        path_table: with `is_custom`, int64 [batch, depth]: the nodes on the path, -1 after the end.
        path_code: with `is_custom`, int64 [batch, depth]: the decisions on the path, -1 after the end.
        is_custom: use the tree of `path_table` and `path_code` instead of a complete tree.
        is_sparse: True for a sparse gradient of the weights, with the used rows only.

    Raises ProgramError for less than two classes, or a custom tree without paths.
    """
    check_variable(input, "hsigmoid", "input")
    if num_classes < 2 and not is_custom:
        raise errors.ProgramError(f"hsigmoid, num_classes: expected at least 2, found {num_classes}")
    if is_custom and (path_table is None or path_code is None):
        raise errors.ProgramError("hsigmoid: is_custom needs path_table and path_code")
    if not is_custom and (path_table is not None or path_code is not None):
        raise errors.ProgramError("hsigmoid: path_table and path_code need is_custom=True")
    helper = LayerHelper("hierarchical_sigmoid", input=input, param_attr=param_attr, bias_attr=bias_attr, name=name)
    nodes = num_classes if is_custom else num_classes - 1
    out, pre = (helper.create_variable_for_type_inference(input.dtype) for _ in range(2))
    weight = helper.create_parameter(
        attr=helper.param_attr, shape=[nodes, input.shape[1]], is_bias=False, dtype=input.dtype
    )
    inputs: dict[str, Any] = {"X": input, "W": weight, "Label": label}
    if path_table is not None:
        inputs |= {"PathTable": path_table, "PathCode": path_code}
    if helper.bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(
            attr=helper.bias_attr, shape=[nodes, 1], is_bias=True, dtype=input.dtype
        )
    helper.append_op(
        type="hierarchical_sigmoid",
        inputs=inputs,
        outputs={"Out": out, "PreOut": pre, "W_Out": weight},
        attrs={"num_classes": num_classes, "is_sparse": is_sparse, "remote_prefetch": is_sparse},
    )
    return out


def sampled_softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: Variable | None = None,
    customized_probabilities: Variable | None = None,
    seed: int = 0,
) -> Variable:
    """Return the softmax cross entropy over the label and `num_samples` sampled classes: [batch, 1].

    Classes are sampled log-uniformly (Jean et al. 2014).

    Args:
        logits: [batch, classes].
        label: class numbers, int64 [batch, 1].
        num_samples: number of classes sampled for each row.
        num_true: must be 1, the only value that Fluid computes.
        remove_accidental_hits: leave out sampled classes that are the label of the row.
        use_customized_samples: use the next two arguments instead of sampling.
        customized_samples: int64 [batch, 1 + num_samples], the label first.
        customized_probabilities: of these samples, in the same shape.
        seed: 0 samples new classes in each step.

    Raises ProgramError if customized samples are requested but missing, or for `num_true` other than 1.
    """
    check_variable(logits, "sampled_softmax_with_cross_entropy", "logits")
    if use_customized_samples and (customized_samples is None or customized_probabilities is None):
        raise errors.ProgramError(
            "sampled_softmax_with_cross_entropy: use_customized_samples needs customized_samples and "
            "customized_probabilities"
        )
    if num_true != 1:
        raise errors.ProgramError(
            f"sampled_softmax_with_cross_entropy, num_true: rows with {num_true} labels have no cross "
            "entropy over num_samples + 1 classes, in Fluid either; use one label a row"
        )
    helper = LayerHelper("sample_logits")
    inputs: dict[str, Any] = {"Logits": logits, "Labels": label}
    if use_customized_samples:
        samples, chances = customized_samples, customized_probabilities
        inputs |= {"CustomizedSamples": samples, "CustomizedProbabilities": chances}
    else:
        samples, chances = (helper.create_variable_for_type_inference(d) for d in ("int64", logits.dtype))
    sampled, labels, logits_dim, labels_dim = (
        helper.create_variable_for_type_inference(d) for d in (logits.dtype, "int64", logits.dtype, label.dtype)
    )
    helper.append_op(
        type="sample_logits",
        inputs=inputs,
        outputs={
            "Samples": samples,
            "Probabilities": chances,
            "SampledLabels": labels,
            "SampledLogits": sampled,
            "LogitsDim": logits_dim,
            "LabelsDim": labels_dim,
        },
        attrs={
            "use_customized_samples": use_customized_samples,
            "uniq": True,
            "remove_accidental_hits": remove_accidental_hits,
            "num_samples": num_samples,
            "seed": seed,
        },
    )
    softmax, loss = (helper.create_variable_for_type_inference(logits.dtype) for _ in range(2))
    soft = one_hot(input=labels, depth=num_samples + 1)
    helper.append_op(
        type="softmax_with_cross_entropy",
        inputs={"Logits": sampled, "Label": soft},
        outputs={"Softmax": softmax, "Loss": loss},
        attrs={"soft_label": True, "ignore_index": -100, "numeric_stable_mode": False},
    )
    return loss / num_true
