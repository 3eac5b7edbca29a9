"""Decoding with recurrent cells, step by step until all sequences are finished."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.arrays import array_write, tensor_array_to_tensor
from jfluid.layers.cells import _packed
from jfluid.layers.control_flow import While, _flat, _map
from jfluid.layers.creation import assign, cast, fill_constant
from jfluid.layers.helper import emit
from jfluid.layers.recurrent import gather_tree
from jfluid.layers.shape import transpose
from jfluid.layers.tensor import increment

__all__ = ["BeamSearchDecoder", "Decoder", "dynamic_decode"]


class Decoder:
    """Interface of decoders for `dynamic_decode`: initialization, step, finalization."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """Return (the inputs of the first step, the states, the bool mask of finished sequences).

        Raises NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} must define initialize")

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        """Return (the outputs, the states, the inputs of the next step, the mask of finished sequences).

        Raises NotImplementedError here.

        Args:
            time: the number of the step, from 0: int64 [1].
            inputs: inputs of the step.
            states: states before the step.
            **kwargs: further arguments of the cell.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> tuple[Any, Any]:
        """Return (outputs, states) of the whole, from the outputs of all steps, [time, ...]."""
        return outputs, final_states

    @property
    def tracks_own_finished(self) -> bool:
        """Return True if `step` returns all finished sequences, not only sequences that end in this step."""
        return False


class BeamSearchDecoder(Decoder):
    """Beam search with a cell over dense beams [batch, beam, ...].

    Args:
        cell: an RNNCell.
        start_token, end_token: the words that begin and end a hypothesis.
        beam_size: how many hypotheses are kept for each example.
        embedding_fn: a function from words, int64 [batch, beam], to the cell's inputs [batch, beam,
            width].
        output_fn: a function from the cell's outputs [batch, beam, width] to logits [batch, beam,
            words].
    """

    OutputWrapper = namedtuple("OutputWrapper", ("scores", "predicted_ids", "parent_ids"))
    StateWrapper = namedtuple("StateWrapper", ("cell_states", "log_probs", "finished", "lengths"))

    def __init__(
        self,
        cell: Any,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[..., Any] | None = None,
        output_fn: Callable[..., Any] | None = None,
    ):
        self.cell, self.embedding_fn, self.output_fn = cell, embedding_fn, output_fn
        self.start_token, self.end_token, self.beam_size = start_token, end_token, beam_size

    @staticmethod
    def tile_beam_merge_with_batch(x: Variable, beam_size: int) -> Variable:
        """Repeat each example for each of `beam_size` beams: [batch, ...] becomes [batch * beam_size, ...]."""
        times = emit("unsqueeze2", {"X": x}, {"axes": [1]})
        times = emit("expand", {"X": times}, {"expand_times": [1, beam_size] + [1] * (len(x.shape) - 1)})
        if -1 not in x.shape[1:]:
            return emit("reshape2", {"X": times}, {"shape": [-1, *x.shape[1:]]})
        # A shape has at most one -1: with batch and beams last, all other dimensions are copied (0).
        rest = len(x.shape) - 1
        last = emit("transpose2", {"X": times}, {"axis": [*range(2, rest + 2), 0, 1]})
        last = emit("reshape2", {"X": last}, {"shape": [0] * rest + [-1]})
        return emit("transpose2", {"X": last}, {"axis": [rest, *range(rest)]})

    def _split(self, x: Variable) -> Variable:
        return emit("reshape2", {"X": x}, {"shape": [-1, self.beam_size, *x.shape[1:]]})

    def _merge(self, x: Variable) -> Variable:
        return emit("reshape2", {"X": x}, {"shape": [-1, *x.shape[2:]]})

    def _beams(self, x: Variable) -> Variable:
        times = emit("unsqueeze2", {"X": x}, {"axes": [1]})
        return emit("expand", {"X": times}, {"expand_times": [1, self.beam_size] + [1] * (len(x.shape) - 1)})

    def _like_batch(self, reference: Variable, value: float, dtype: str, width: int | None = None) -> Variable:
        return emit(
            "fill_constant_batch_size_like",
            {"Input": reference},
            {"shape": [-1, width or self.beam_size], "value": float(value), "dtype": int(VarType[dtype])},
        )

    def initialize(self, initial_cell_states: Any) -> tuple[Any, Any, Variable]:
        """Create beams with one live beam each, the only candidate of the first step."""
        reference = _flat(initial_cell_states)[0]
        states = _map(self._beams, initial_cell_states)
        ids = self._like_batch(reference, self.start_token, "INT64")
        scores = self._like_batch(reference, 0.0, "FP32", 1)
        if self.beam_size > 1:
            others = self._like_batch(reference, -1e9, "FP32", self.beam_size - 1)
            scores = emit("concat", {"X": [scores, others]}, {"axis": 1})
        finished = cast(self._like_batch(reference, 0, "INT64"), "bool")
        lengths = self._like_batch(reference, 0, "INT64")
        inputs = self.embedding_fn(ids) if self.embedding_fn else ids
        return inputs, self.StateWrapper(states, scores, finished, lengths), finished

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        """Run the cell on all beams, and choose the best continuations."""
        outputs, cell_states = self.cell(_map(self._merge, inputs), _map(self._merge, states.cell_states), **kwargs)
        logits = self.output_fn(self._split(outputs)) if self.output_fn else self._split(outputs)
        words = logits.shape[-1]
        chances = emit("log", {"X": emit("softmax", {"X": logits}, {"axis": -1})})
        ended = cast(states.finished, "float32")
        only_end = emit("one_hot_v2", {"X": fill_constant([1], "int64", self.end_token)}, {"depth": words})
        closed = emit(
            "scale", {"X": emit("reshape2", {"X": only_end}, {"shape": [1, 1, words]})}, {"scale": 1e9, "bias": -1e9}
        )
        chances = emit(
            "elementwise_add",
            {
                "X": emit("elementwise_mul", {"X": chances, "Y": 1.0 - ended}, {"axis": 0}),
                "Y": emit(
                    "elementwise_mul",
                    {"X": emit("expand_as", {"X": closed, "target_tensor": chances}), "Y": ended},
                    {"axis": 0},
                ),
            },
        )
        totals = emit("elementwise_add", {"X": chances, "Y": states.log_probs}, {"axis": 0})
        flat = emit("reshape2", {"X": totals}, {"shape": [-1, self.beam_size * words]})
        scores, best = emit("top_k", {"X": flat}, {"k": self.beam_size}, outs=("Out", "Indices"))
        width = fill_constant([1], "int64", words)
        parents = emit("elementwise_floordiv", {"X": best, "Y": width})
        tokens = emit("elementwise_mod", {"X": best, "Y": width})
        cell_states = _map(lambda s: self._of_parents(self._split(s), parents), cell_states)
        finished = cast(self._of_parents(cast(states.finished, "int64"), parents), "bool")
        lengths = emit(
            "elementwise_add",
            {"X": self._of_parents(states.lengths, parents), "Y": cast(emit("logical_not", {"X": finished}), "int64")},
        )
        ends = emit("equal", {"X": tokens, "Y": fill_constant([1], "int64", self.end_token)})
        finished = emit("logical_or", {"X": finished, "Y": ends})
        following = self.embedding_fn(tokens) if self.embedding_fn else tokens
        return (
            self.OutputWrapper(scores, tokens, parents),
            self.StateWrapper(cell_states, scores, finished, lengths),
            following,
            finished,
        )

    def _of_parents(self, x: Variable, parents: Variable) -> Variable:
        """Return, for each beam, the entry of `x` [batch, beam, ...] of the beam that it continues."""
        hot = emit("one_hot_v2", {"X": parents}, {"depth": self.beam_size})  # [batch, beam, beam]
        if len(x.shape) == 2:
            wide = emit("unsqueeze2", {"X": cast(x, "float32")}, {"axes": [2]})
            return cast(emit("squeeze2", {"X": emit("matmul", {"X": hot, "Y": wide})}, {"axes": [2]}), x.dtype)
        return emit("matmul", {"X": hot, "Y": x})

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> tuple[Any, Any]:
        """Return the words of whole hypotheses, [time, batch, beam], and the final states."""
        return gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states

    @property
    def tracks_own_finished(self) -> bool:
        return True


def dynamic_decode(
    decoder: Decoder,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> Any:
    """Run a decoder until all sequences are finished, or up to a last step.

    The loop runs on the host.

    Args:
        decoder: a Decoder.
        inits: is passed to the decoder's `initialize`.
        max_step_num: the number of the last step, counted from 0; None for no limit.
        output_time_major: return outputs [time, batch, ...] instead of [batch, time, ...].
        impute_finished: keep the states of what has finished, of decoders that do not track that
            themselves.
        is_test: stays in the program without effect.
        return_length: also return the lengths of the sequences.
        kwargs: are passed to the decoder's `step`.

    Returns:
        (outputs, final states), or (outputs, final states, lengths).
    """
    if not isinstance(decoder, Decoder):
        raise TypeError(f"dynamic_decode, decoder: expected a Decoder, found {type(decoder).__name__}")
    inputs, states, finished = decoder.initialize(inits)
    inputs, states, finished = (_map(assign, v) for v in (inputs, states, finished))
    lengths = cast(emit("fill_zeros_like", {"X": cast(finished, "int64")}), "int64")
    time = fill_constant([1], "int64", 0)
    limit = fill_constant([1], "int64", max_step_num + 1) if max_step_num is not None else None
    going = emit("logical_not", {"X": emit("reduce_all", {"X": finished}, {"reduce_all": True})})
    arrays: list[Variable] = []
    structure: list[Any] = []
    with While(going, is_test=is_test).block():
        outputs, new, following, ends = decoder.step(time, inputs, states, **kwargs)
        structure.append(outputs)
        longer = emit("elementwise_add", {"X": lengths, "Y": cast(emit("logical_not", {"X": finished}), "int64")})
        ends = emit("logical_or", {"X": ends, "Y": finished})
        if impute_finished and not decoder.tracks_own_finished:
            new = _map(lambda old, now: _unless(finished, now, old), states, new)
        for each in _flat(outputs):
            outside = each.block.parent
            array = outside.create_var(name=f"{each.name}_array", type=VarType.LOD_TENSOR_ARRAY, dtype=each.dtype)
            arrays.append(array_write(each, time, array))
        increment(time, 1.0)
        _map(assign, following, inputs)
        _map(assign, new, states)
        assign(ends, finished)
        assign(longer, lengths)
        more = emit("logical_not", {"X": emit("reduce_all", {"X": finished}, {"reduce_all": True})})
        if limit is not None:
            more = emit("logical_and", {"X": more, "Y": emit("less_than", {"X": time, "Y": limit})})
        assign(more, going)
    stacked = [tensor_array_to_tensor(a, axis=0, use_stack=True)[0] for a in arrays]
    results, states = decoder.finalize(_packed(structure[0], stacked), states, lengths)
    if not output_time_major:
        results = _map(lambda v: transpose(v, [1, 0, *range(2, len(v.shape))]), results)
    return (results, states, lengths) if return_length else (results, states)


def _unless(finished: Variable, new: Variable, old: Variable) -> Variable:
    """Return `old` for finished sequences, else `new`."""
    ended = cast(finished, new.dtype)
    return emit(
        "elementwise_add",
        {
            "X": emit("elementwise_mul", {"X": new, "Y": 1.0 - ended}, {"axis": 0}),
            "Y": emit("elementwise_mul", {"X": old, "Y": ended}, {"axis": 0}),
        },
    )
