"""Decoding with one output per step: helpers sample from the output and provide the next input."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.control_flow import _flat, _map
from jfluid.layers.creation import cast, fill_constant, fill_constant_batch_size_like
from jfluid.layers.decode import Decoder
from jfluid.layers.helper import check_variable, emit

__all__ = ["BasicDecoder", "DecodeHelper", "GreedyEmbeddingHelper", "SampleEmbeddingHelper", "TrainingHelper"]


class DecodeHelper:
    """Interface of helpers for `BasicDecoder`: initialization, sampling, next inputs."""

    def initialize(self) -> tuple[Any, Variable]:
        """Return (the inputs of the first step, the bool mask [batch] of finished sequences).

        Raises NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} must define initialize")

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return the sampled ids, integers [batch], of the outputs of step `time`, int64 [1].

        Raises NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} must define sample")

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> tuple[Variable, Any, Any]:
        """Return (the mask of finished sequences, the inputs of the next step, its states).

        Raises NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} must define next_inputs")


def _best(outputs: Variable) -> Variable:
    return emit("arg_max", {"X": outputs}, {"axis": -1})


class TrainingHelper(DecodeHelper):
    """Helper for teacher forcing: each step gets the true input.

    The sampled ids are the argmax of the outputs and are not fed back.

    Args:
        inputs: [batch, time, ...], or a structure of such Variables.
        sequence_length: integers [batch]: the number of steps of each sequence.
        time_major: True if inputs are [time, batch, ...].
    """

    def __init__(self, inputs: Any, sequence_length: Variable, time_major: bool = False):
        for each in _flat(inputs):
            check_variable(each, "TrainingHelper", "inputs")
        check_variable(sequence_length, "TrainingHelper", "sequence_length")
        self.inputs, self.sequence_length, self.time_major = inputs, sequence_length, time_major
        self._steps = _map(self._padded, inputs)

    def _padded(self, x: Variable) -> Variable:
        """Return [time + 1, batch, ...]: the step after the last reads zeros."""
        if not self.time_major:
            x = emit("transpose2", {"X": x}, {"axis": [1, 0, *range(2, len(x.shape))]})
        return emit("pad", {"X": x}, {"paddings": [0, 1] + [0, 0] * (len(x.shape) - 1)})

    def _at(self, time: Variable) -> Any:
        def step(x: Variable) -> Variable:
            return emit("squeeze2", {"X": emit("gather", {"X": x, "Index": time})}, {"axes": [0]})

        return _map(step, self._steps)

    def initialize(self) -> tuple[Any, Variable]:
        """Return the first step of the inputs; sequences without steps are finished."""
        zero = fill_constant([1], self.sequence_length.dtype, 0)
        finished = emit("equal", {"X": self.sequence_length, "Y": zero})
        return self._at(fill_constant([1], "int64", 0)), finished

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return the best of the outputs, int64 [batch]."""
        return _best(outputs)

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> tuple[Variable, Any, Any]:
        """Return the mask of sequences that end before the next step, its inputs, and the unchanged states."""
        following = emit("increment", {"X": time}, {"step": 1.0})
        lengths = cast(self.sequence_length, "int64")
        finished = emit("less_equal", {"X": lengths, "Y": following})
        return finished, self._at(following), states


class GreedyEmbeddingHelper(DecodeHelper):
    """Helper that feeds back the embedding of the argmax, until the end token.

    Args:
        embedding_fn: a function from ids, int64 [batch], to the inputs of a step, such as one that
            calls `fluid.embedding` (`layers.embedding` wants ids [batch, 1]).
        start_tokens: int64 [batch]: the first inputs.
        end_token: the id that ends a sequence.
    """

    def __init__(self, embedding_fn: Callable[[Variable], Any], start_tokens: Variable, end_token: int):
        check_variable(start_tokens, type(self).__name__, "start_tokens")
        self.embedding_fn, self.start_tokens = embedding_fn, start_tokens
        self.end_token = fill_constant([1], "int64", end_token)

    def initialize(self) -> tuple[Any, Variable]:
        """Return the embeddings of the start tokens; no sequence is finished."""
        finished = fill_constant_batch_size_like(self.start_tokens, [-1], "bool", False)
        return self.embedding_fn(self.start_tokens), finished

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return the best of the outputs, int64 [batch]."""
        return _best(outputs)

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> tuple[Variable, Any, Any]:
        """Return the mask of sequences with the end token, the embeddings of the ids, and the unchanged states."""
        finished = emit("equal", {"X": sample_ids, "Y": self.end_token})
        return finished, self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Helper that samples each id from softmax(outputs / temperature), until the end token.

    The next step gets the embedding of the id.

    Args:
        embedding_fn: see GreedyEmbeddingHelper.
        start_tokens: see GreedyEmbeddingHelper.
        end_token: see GreedyEmbeddingHelper.
        softmax_temperature: above 0: above 1 makes rare ids likelier, below 1 rarer. None means 1.
        seed: a fixed seed draws the same numbers in each step; None draws new numbers.

    Raises ProgramError for a temperature that is not above 0.
    """

    def __init__(
        self,
        embedding_fn: Callable[[Variable], Any],
        start_tokens: Variable,
        end_token: int,
        softmax_temperature: float | None = None,
        seed: int | None = None,
    ):
        super().__init__(embedding_fn, start_tokens, end_token)
        if softmax_temperature is not None and softmax_temperature <= 0:
            raise errors.ProgramError(
                f"SampleEmbeddingHelper, softmax_temperature: expected a number above 0, found {softmax_temperature}"
            )
        self.softmax_temperature = (
            None if softmax_temperature is None else fill_constant([1], "float32", softmax_temperature)
        )
        self.seed = seed

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return drawn ids, of the dtype of the start tokens, [batch]."""
        logits = outputs
        if self.softmax_temperature is not None:
            logits = emit("elementwise_div", {"X": outputs, "Y": self.softmax_temperature})
        chances = emit("softmax", {"X": logits}, {"axis": -1})
        chances.stop_gradient = True
        drawn = emit("sampling_id", {"X": chances}, {"seed": self.seed or 0})
        return cast(drawn, self.start_tokens.dtype)


class BasicDecoder(Decoder):
    """Decoder with a helper that samples and provides the next inputs.

    Args:
        cell: an RNNCell.
        helper: a DecodeHelper.
        output_fn: function of the cell's outputs that returns the logits to sample from; None samples
            from the outputs.
    """

    OutputWrapper = namedtuple("OutputWrapper", ("cell_outputs", "sample_ids"))

    def __init__(self, cell: Any, helper: DecodeHelper, output_fn: Callable[..., Any] | None = None):
        self.cell, self.helper, self.output_fn = cell, helper, output_fn

    def initialize(self, initial_cell_states: Any) -> tuple[Any, Any, Variable]:
        """Return (the helper's first inputs, the unchanged states, the mask of finished sequences)."""
        inputs, finished = self.helper.initialize()
        return inputs, initial_cell_states, finished

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        """Run the cell and sample from its outputs.

        Returns ((outputs, sampled ids), the states, the inputs of the next step, the mask of finished sequences).
        """
        outputs, states = self.cell(inputs, states, **kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        ids = self.helper.sample(time=time, outputs=outputs, states=states)
        ids.stop_gradient = True
        finished, inputs, states = self.helper.next_inputs(time=time, outputs=outputs, states=states, sample_ids=ids)
        return self.OutputWrapper(outputs, ids), states, inputs, finished
