"""Beam search, run on the host between compiled steps: the number of hypotheses depends on the scores.

Hypotheses are rows with a LoD of two levels: source sentences -> prefixes -> the words chosen to
follow each prefix.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.lod_tensor import LoDTensor, LoDTensorArray
from jfluid.ops.registry import Int, op


@op(
    "beam_search",
    ins=("pre_ids", "pre_scores", "ids?", "scores"),
    outs=("selected_ids", "selected_scores", "parent_idx?"),
    grad=False,
    host=True,
    reaches=None,
    rows="sequence",
)
def beam_search(
    pre_ids: LoDTensor,
    pre_scores: LoDTensor,
    ids: LoDTensor | None,
    scores: LoDTensor,
    *,
    level: Int,
    beam_size: Int,
    end_id: Int,
    is_accumulated: bool = True,
) -> tuple[LoDTensor, LoDTensor, LoDTensor]:
    """Choose the best `beam_size` of all words that may follow the prefixes of a source sentence.

    An ended prefix continues with the end token only, at the same score; a sentence all of whose
    hypotheses have ended has no rows.
    """
    before, before_scores = np.array(pre_ids).reshape(-1), np.array(pre_scores).reshape(-1)
    gain = np.array(scores)
    gain = gain.reshape(len(before), -1) if len(before) else gain.reshape(0, max(gain.shape[-1], 1))
    words = np.broadcast_to(np.arange(gain.shape[1]), gain.shape) if ids is None else np.array(ids).reshape(gain.shape)
    if not is_accumulated:
        gain = before_scores[:, None] + np.log(gain)
    lod = scores.lod() or (ids.lod() if ids is not None else [])
    if len(lod) <= level:
        raise errors.OpError(
            f"beam_search: scores need a LoD with level {level}, found {len(lod)} levels; "
            "take it from pre_scores with layers.lod_reset"
        )
    sources = _to_rows(lod, level)
    if sources[-1] != len(before):
        raise errors.ShapeError(f"beam_search: pre_ids has {len(before)} rows, the LoD of scores {sources[-1]}")
    chosen = [
        _best(before, before_scores, words, gain, start, end, beam_size, end_id)
        for start, end in zip(sources, sources[1:])
    ]
    parents, following, best = (np.concatenate([c[i] for c in chosen]) if chosen else np.zeros(0) for i in range(3))
    counts = np.bincount(parents.astype(np.int64), minlength=len(before))
    lod = [list(sources), [0, *np.cumsum(counts).tolist()]]
    return (
        LoDTensor(following.astype(np.int64).reshape(-1, 1), lod),
        LoDTensor(best.astype(gain.dtype).reshape(-1, 1), lod),
        LoDTensor(parents.astype(np.int32)),
    )


def _to_rows(lod: Sequence[Sequence[int]], level: int) -> list[int]:
    """Return the offsets of a level in rows."""
    offsets = list(lod[level])
    for below in lod[level + 1 :]:
        offsets = [below[o] for o in offsets]
    return offsets


def _best(
    before: np.ndarray,
    before_scores: np.ndarray,
    words: np.ndarray,
    gain: Any,
    start: int,
    end: int,
    beam_size: int,
    end_id: int,
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return (prefix, word, score) of the best continuations of the prefixes start..end.

    The order is by prefix, then by falling score.
    """
    ended = before[start:end] == end_id
    width = gain.shape[1]
    prefix = np.repeat(np.arange(start, end), width)
    word, score = words[start:end].reshape(-1).copy(), gain[start:end].reshape(-1).copy()
    first = np.arange(width * (end - start)) % width == 0
    of_ended = np.repeat(ended, width)
    word[of_ended & first] = end_id
    score[of_ended & first] = np.repeat(before_scores[start:end], width)[of_ended & first]
    allowed = np.flatnonzero(~of_ended | first)
    # Of equal scores the later prefix wins.
    order = allowed[np.lexsort((-prefix[allowed], -score[allowed]))][:beam_size]
    if len(order) and all(word[order] == end_id) and all(ended[prefix[order] - start]):
        order = order[:0]
    order = order[np.lexsort((-score[order], prefix[order]))]
    return prefix[order], word[order], score[order]


@op(
    "beam_search_decode",
    ins=("Ids", "Scores"),
    outs=("SentenceIds", "SentenceScores"),
    grad=False,
    host=True,
    reaches=None,
    rows="sequence",
)
def beam_search_decode(
    ids: LoDTensorArray, scores: LoDTensorArray, *, beam_size: Int, end_id: Int
) -> tuple[LoDTensor, LoDTensor]:
    """Trace the hypotheses of all steps back to whole sentences, best first."""
    if not len(ids) or len(ids) != len(scores):
        raise errors.OpError(
            f"beam_search_decode: Ids and Scores need the same steps, found {len(ids)} and {len(scores)}"
        )
    sources = len(ids[0].lod()[0]) - 1
    sentences = [_sentences(ids, scores, source, end_id) for source in range(sources)]
    flat = [s for group in sentences for s in group]
    lod = [
        [0, *np.cumsum([len(group) for group in sentences]).tolist()],
        [0, *np.cumsum([len(w) for w, _ in flat]).tolist()],
    ]

    def tensor(part: int, dtype: np.dtype) -> LoDTensor:
        rows = np.concatenate([np.asarray(s[part], dtype) for s in flat]) if flat else np.zeros(0, dtype)
        return LoDTensor(rows, lod)

    return tensor(0, np.dtype(np.int64)), tensor(1, np.array(scores[0]).dtype)


def _sentences(
    ids: LoDTensorArray, scores: LoDTensorArray, source: int, end_id: int
) -> list[tuple[list[Any], list[Any]]]:
    """Return (words, scores) of a source sentence's hypotheses, by falling final score.

    They are followed from the end to the start.
    """
    found: list[tuple[list[Any], list[Any]]] = []
    at: list[int] = []  # the row of each hypothesis in the step that is looked at
    for word, score in zip(reversed(ids), reversed(scores)):
        prefixes, rows = word.lod()
        first, last = prefixes[source], prefixes[source + 1]
        words, values = np.array(word).reshape(-1), np.array(score).reshape(-1)
        new = not at
        if new:  # the last step, or the last before the sentence dropped out
            at = list(range(rows[first], rows[last]))
            found = [([], []) for _ in at]
        for (sentence, history), row in zip(found, at):
            # an ended beam continues with end tokens; one is enough
            if words[row] != end_id or not sentence:
                sentence.append(int(words[row]))
                history.append(float(values[row]))
        at = [int(np.searchsorted(rows, row, side="right")) - 1 for row in at]
    found.sort(key=lambda s: -s[1][0] if s[1] else 0.0)
    return [(words[::-1], history[::-1]) for words, history in found]
