"""Beam search over hypotheses with a LoD of two levels: source sentences, and the prefixes of each."""

from typing import Any

from jfluid.ir.variable import Variable
from jfluid.layers.arrays import _check_array
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = ["beam_search", "beam_search_decode"]


def beam_search(
    pre_ids: Variable,
    pre_scores: Variable,
    ids: Variable | None,
    scores: Variable,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> Any:
    """Do one step of beam search: choose the best `beam_size` of all words that may follow the
    prefixes of a source sentence.

    It runs on the host, between two compiled parts of the step.

    Args:
        pre_ids: the last word of each prefix, int64 [prefixes, 1].
        pre_scores: the score of each prefix, [prefixes, 1].
        ids: the words that may follow each prefix, int64 [prefixes, k]; None means 0 .. k - 1.
        scores: their scores [prefixes, k], with the LoD source -> prefixes at `level`.
        beam_size: how many words each source sentence keeps.
        end_id: the word that ends a hypothesis; it is followed by itself only, at the same score.
        level: which level of the LoD groups prefixes by source sentence.
        is_accumulated: whether `scores` are those of whole hypotheses. Otherwise they are
            probabilities of the next word, whose logarithms are added to `pre_scores`.
        return_parent_idx: also return, int32, the prefix that each chosen word follows.

    Returns:
        (the chosen words, their scores), each [chosen, 1] with the LoD source -> prefixes -> words.
            A sentence all of whose hypotheses have ended has none.
    """
    check_variable(pre_ids, "beam_search", "pre_ids")
    helper = LayerHelper("beam_search", name=name)
    score_type, id_type = pre_scores.dtype, pre_ids.dtype
    inputs = {"pre_ids": pre_ids, "pre_scores": pre_scores, "scores": scores}
    if ids is not None:
        inputs["ids"] = ids
    chosen_scores = helper.create_variable_for_type_inference(score_type)
    chosen = helper.create_variable_for_type_inference(id_type)
    parents = helper.create_variable_for_type_inference("int32")
    for var, dtype in ((chosen_scores, score_type), (chosen, id_type)):
        var.set_shape_dtype((-1, 1), dtype)
        var.lod_level = 2
    parents.set_shape_dtype((-1,), parents.dtype)
    helper.append_op(
        type="beam_search",
        inputs=inputs,
        outputs={"selected_ids": chosen, "selected_scores": chosen_scores, "parent_idx": parents},
        attrs={
            "level": level,
            "beam_size": beam_size,
            "end_id": end_id,
            "is_accumulated": is_accumulated,
        },
    )
    return (chosen, chosen_scores, parents) if return_parent_idx else (chosen, chosen_scores)


def beam_search_decode(
    ids: Variable, scores: Variable, beam_size: int, end_id: int, name: str | None = None
) -> tuple[Variable, Variable]:
    """Return the whole hypotheses, best first, from arrays of what `beam_search` chose in each step.

    Args:
        ids, scores: the arrays of words and of scores.
        beam_size: that of `beam_search`.
        end_id: the word that ends a hypothesis.

    Returns:
        (words int64 [words], scores [words]), with the LoD source -> hypotheses -> words.
    """
    _check_array("beam_search_decode", ids)
    _check_array("beam_search_decode", scores)
    words, values = emit(
        "beam_search_decode",
        {"Ids": ids, "Scores": scores},
        {"beam_size": beam_size, "end_id": end_id},
        outs=("SentenceIds", "SentenceScores"),
        name=name,
    )
    for var, like in ((words, ids), (values, scores)):
        var.set_shape_dtype((-1,), like.dtype)
        var.lod_level = 2
    return words, values
