"""A decoder that gets the true words: for training."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jfluid import errors
from jfluid.contrib.decoder.state_cell import TRAINING, InitState, StateCell
from jfluid.ir.variable import Variable
from jfluid.layers.dynamic_rnn import DynamicRNN


class _RnnMemory:
    """A state of a DynamicRNN."""

    def __init__(self, rnn: DynamicRNN, init: InitState):
        self.rnn = rnn
        self.before = rnn.memory(init=init.value, need_reorder=init.need_reorder)

    def read(self) -> Variable:
        return self.before

    def write(self, state: Variable) -> None:
        self.rnn.update_memory(self.before, state)


class TrainingDecoder:
    """Steps a StateCell over sequences.

        decoder = TrainingDecoder(cell)
        with decoder.block():
            word = decoder.step_input(words)
            decoder.state_cell.compute_state(inputs={"x": word})
            decoder.output(layers.fc(decoder.state_cell.get_state("h"), size=number, act="softmax"))
            decoder.state_cell.update_states()
        chances = decoder()

    Args:
        state_cell: a StateCell.
        name: of the DynamicRNN.

    Raises ProgramError where its methods are called in a different order than this.
    """

    BEFORE_DECODER, IN_DECODER, AFTER_DECODER = range(3)

    def __init__(self, state_cell: StateCell, name: str | None = None):
        self._status, self._cell = TrainingDecoder.BEFORE_DECODER, state_cell
        self._rnn = DynamicRNN(name=name)
        state_cell._enter_decoder(self)

    def _memory(self, init: InitState) -> _RnnMemory:
        return _RnnMemory(self._rnn, init)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Return a context in which one step is made."""
        if self._status != TrainingDecoder.BEFORE_DECODER:
            raise errors.ProgramError("TrainingDecoder.block: it can be made once only")
        self._status = TrainingDecoder.IN_DECODER
        with self._rnn.block():
            yield
        self._status = TrainingDecoder.AFTER_DECODER
        self._cell._leave_decoder(self)

    def _only_inside(self, method: str) -> None:
        if self._status != TrainingDecoder.IN_DECODER:
            raise errors.ProgramError(f"TrainingDecoder.{method}: use it inside of `with decoder.block():`")

    @property
    def state_cell(self) -> StateCell:
        """The cell, in the block."""
        self._only_inside("state_cell")
        return self._cell

    @property
    def dynamic_rnn(self) -> DynamicRNN:
        """The `DynamicRNN` that runs the decoder's steps."""
        return self._rnn

    @property
    def type(self) -> int:
        """1, Fluid's number of decoders for training."""
        return TRAINING

    def step_input(self, x: Variable) -> Variable:
        """Return one step of the sequences `x`."""
        self._only_inside("step_input")
        return self._rnn.step_input(x)

    def static_input(self, x: Variable) -> Variable:
        """Return `x` as a whole, with its sequences in the order of the steps'."""
        self._only_inside("static_input")
        return self._rnn.static_input(x)

    def output(self, *outputs: Variable) -> None:
        """Declare the outputs of each step."""
        self._only_inside("output")
        self._rnn.output(*outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of all steps, as rows with the LoD of the step inputs."""
        if self._status != TrainingDecoder.AFTER_DECODER:
            raise errors.ProgramError("TrainingDecoder: its outputs are there after its block")
        return self._rnn(*args, **kwargs)
