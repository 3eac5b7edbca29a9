"""Layers of linear-chain conditional random fields."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = ["chunk_eval", "crf_decoding", "linear_chain_crf"]


def linear_chain_crf(
    input: Variable, label: Variable, param_attr: Any = None, length: Variable | None = None
) -> Variable:
    """Return the negative log-likelihood of each sequence of labels, [number of sequences, 1] (Lafferty et al. 2001).

    Args:
        input: scores of the tags: rows [rows, tags] with a LoD, or [number of sequences, steps,
            tags] with `length`.
        label: the tags, int64, of the same rows: [rows, 1] or [number of sequences, steps].
        param_attr: ParamAttr of the transition weights, [tags + 2, tags]: the first row is for the
            start, the second for the end, and the others for each tag that is followed by another.
        length: int64 [number of sequences, 1]: how many steps count, in the dense form.
    """
    check_variable(input, "linear_chain_crf", "input")
    helper = LayerHelper("linear_chain_crf", input=input, param_attr=param_attr)
    tags = input.shape[2] if length is not None else input.shape[1]
    transition = helper.create_parameter(attr=helper.param_attr, shape=[tags + 2, tags], dtype=helper.input_dtype())
    alpha, emission, weights, cost = (helper.create_variable_for_type_inference(input.dtype) for _ in range(4))
    inputs = {"Emission": [input], "Transition": transition, "Label": [label]}
    if length is not None:
        inputs["Length"] = [length]
    helper.append_op(
        type="linear_chain_crf",
        inputs=inputs,
        outputs={"Alpha": [alpha], "EmissionExps": [emission], "TransitionExps": weights, "LogLikelihood": cost},
    )
    return cost


def crf_decoding(
    input: Variable, param_attr: Any, label: Variable | None = None, length: Variable | None = None
) -> Variable:
    """Return the most likely tags of each sequence (Viterbi), int64 with the rows of `input`.

    Args:
        input: see `linear_chain_crf`.
        param_attr: names the transition weights that `linear_chain_crf` made.
        label: return 1 where the decoded tag is this label and 0 elsewhere, instead of the tags.
        length: see `linear_chain_crf`.

    Raises ProgramError if no parameter has the name.
    """
    helper = LayerHelper("crf_decoding", param_attr=param_attr)
    name = helper.param_attr.name if helper.param_attr else None
    block = helper.main_program.global_block()
    if name is None or not block.has_var(name):
        raise errors.ProgramError(
            f"crf_decoding, param_attr: it must name the transition weights of linear_chain_crf; the "
            f"program has no {name!r}"
        )
    inputs = {"Emission": input, "Transition": block.var(name), "Label": label, "Length": length}
    return emit("crf_decoding", inputs, outs=("ViterbiPath",), name=helper.name, stop_gradient=True)


def chunk_eval(
    input: Variable,
    label: Variable,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
    seq_length: Variable | None = None,
) -> tuple[Variable, Variable, Variable, Variable, Variable, Variable]:
    """Compare predicted chunks with labelled ones.

    Args:
        input: predicted tags, int64: rows [rows, 1] with a LoD, or [number of sequences, steps] with
            `seq_length`. A tag is type * (tags of the scheme) + tag; num_chunk_types * (tags of the scheme) is
            outside of chunks.
        label: true tags, like `input`.
        chunk_scheme: "IOB", "IOE", "IOBES" or "plain".
        num_chunk_types: how many types of chunks there are.
        excluded_chunk_types: types that do not count.
        seq_length: int64 [number of sequences, 1]: how many steps count, in the dense form.

    Returns:
        (precision, recall, F1, each float32 [1]; the numbers of predicted, labelled and correct
            chunks, each int64 [1]).
    """
    outs = ("Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
    attrs = {
        "num_chunk_types": num_chunk_types,
        "chunk_scheme": chunk_scheme,
        "excluded_chunk_types": list(excluded_chunk_types or ()),
    }
    return emit(
        "chunk_eval",
        {"Inference": input, "Label": label, "SeqLength": seq_length},
        attrs,
        outs=outs,
        stop_gradient=True,
    )
