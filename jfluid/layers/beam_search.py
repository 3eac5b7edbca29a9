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
    """Do one step of beam search: select the best `beam_size` continuations of each source sentence.

    It runs on the host, between two compiled parts of the step.

    Args:
        pre_ids: the last word of each prefix, int64 [prefixes, 1].
        pre_scores: the score of each prefix, [prefixes, 1].
        ids: candidate words of each prefix, int64 [prefixes, k]; None means 0 .. k - 1.
        scores: scores of the candidates [prefixes, k], with the LoD source -> prefixes at `level`.
        beam_size: number of words that each source sentence keeps.
        end_id: the word that ends a hypothesis; its only continuation is itself, at the same score.
        level: the level of the LoD that groups prefixes by source sentence.
        is_accumulated: True if `scores` are scores of whole hypotheses. False if they are probabilities of
            the next word; their logarithms are then added to `pre_scores`.
        name: see `jfluid.layers`.
        return_parent_idx: also return the prefix of each selected word, int32.

    Returns:
        (the selected words, their scores), each [selected, 1] with the LoD source -> prefixes -> words.
            A sentence without unfinished hypotheses has no rows.
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
        attrs={"level": level, "beam_size": beam_size, "end_id": end_id, "is_accumulated": is_accumulated},
    )
    return (chosen, chosen_scores, parents) if return_parent_idx else (chosen, chosen_scores)


def beam_search_decode(
    ids: Variable, scores: Variable, beam_size: int, end_id: int, name: str | None = None
) -> tuple[Variable, Variable]:
    """Return the whole hypotheses, best first, from arrays of the words and scores of each step.

    Args:
        ids: array of the words that `beam_search` selected in each step.
        scores: array of their scores.
        beam_size: the `beam_size` of `beam_search`.
        end_id: the word that ends a hypothesis.
        name: see `jfluid.layers`.

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
