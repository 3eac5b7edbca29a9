"""Connectionist temporal classification: the loss of unsegmented labels, its decoding, and edit distances."""

from collections.abc import Sequence
from typing import Any

from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit

__all__ = ["ctc_greedy_decoder", "edit_distance", "warpctc"]


def warpctc(
    input: Variable,
    label: Variable,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> Variable:
    """Return the CTC loss of each sequence (Graves et al., "Connectionist Temporal Classification", 2006).

    The loss is the negative log-probability of all paths through the sequence's steps that spell the label.

    Args:
        input: logits, before softmax: rows [rows, classes] with a LoD of one level, or [longest
            sequence, batch, classes] with `input_length`. The classes include the blank.
        label: integers below `classes`: rows [rows, 1] with a LoD of one level, or [batch, longest
            label] with `label_length`.
        blank: the index of the blank class.
        norm_by_times: divide the gradient (not the loss) of each sequence by its number of steps;
            not needed for a mean of the losses.
        input_length: int64 [batch]: lengths of the sequences. Give both lengths or neither.
        label_length: int64 [batch]: lengths of the labels.

    Returns:
        [number of sequences, 1], in the dtype of `input`. The loss of a sequence with too few steps
        for its label (equal neighbours need a blank between them) is 0, without a gradient, as in
        Fluid.

    Raises AttributeTypeError if `blank` is no class, ShapeError if the numbers of sequences differ.
    """
    inputs: dict[str, Any] = {"Logits": input, "Label": label}
    if input_length is not None and label_length is not None:
        inputs |= {"LogitsLength": input_length, "LabelLength": label_length}
    attrs = {"blank": blank, "norm_by_times": norm_by_times}
    return emit("warpctc", inputs, attrs, outs=("WarpCTCGrad", "Loss"))[1]


def ctc_greedy_decoder(
    input: Variable, blank: int, input_length: Variable | None = None, padding_value: int = 0, name: str | None = None
) -> Any:
    """Return the label that the best class of each step spells: repeated classes are merged, then blanks are removed.

    Args:
        input: probabilities, logits or any other scores: rows [rows, classes] with a LoD of one level, or [batch,
            longest sequence, classes] with `input_length`.
        blank: which class is the blank.
        input_length: int64 [batch, 1]: how many steps count.
        padding_value: padding after the end of a label, with `input_length`.
        name: see `jfluid.layers`.

    Returns:
        Without lengths int64 rows [symbols, 1] with a LoD; one row of -1 that no sequence has where
        all labels are empty. With lengths (labels, int64 [batch, longest sequence]; their lengths
        [batch, 1]).
    """
    _, best = emit("top_k", {"X": input}, {"k": 1}, outs=("Out", "Indices"))
    attrs = {"blank": blank, "merge_repeated": True}
    options: dict[str, Any] = {"layer": "ctc_greedy_decoder", "name": name, "stop_gradient": True}
    if input_length is None:
        return emit("ctc_align", {"Input": best}, attrs, outs=("Output",), **options)
    path = emit("squeeze2", {"X": best}, {"axes": [2]})
    return emit(
        "ctc_align",
        {"Input": path, "InputLength": input_length},
        {**attrs, "padding_value": padding_value},
        outs=("Output", "OutputLength"),
        **options,
    )


def edit_distance(
    input: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, Variable]:
    """Return the edit distance of each sequence to its label (Levenshtein, 1966).

    The distance is the number of insertions, deletions and substitutions.

    Args:
        input: int64 rows [rows, 1] with a LoD of one level, or [batch, longest] with lengths.
        label: see `input`.
        normalized: divide by the length of the label; an empty label then gives NaN or infinity, where Fluid
    stops.
        ignored_tokens: symbols that are removed from both first, for rows with a LoD.
        input_length: int64 [batch]: lengths of `input`. Give both lengths or neither.
        label_length: int64 [batch]: lengths of `label`.

    Returns:
        (float32 [number of sequences, 1], the number of sequences, int64 [1]).
    """
    inputs: dict[str, Any] = {"Hyps": input, "Refs": label}
    if ignored_tokens:
        erased = {"tokens": list(ignored_tokens)}
        inputs = {s: emit("sequence_erase", {"X": x}, erased) for s, x in inputs.items()}
    if input_length is not None and label_length is not None:
        inputs |= {"HypsLength": input_length, "RefsLength": label_length}
    number, distance = emit(
        "edit_distance", inputs, {"normalized": normalized}, outs=("SequenceNum", "Out"), stop_gradient=True
    )
    return distance, number
