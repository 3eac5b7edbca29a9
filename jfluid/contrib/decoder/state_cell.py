"""A recurrent cell with named inputs and states, which a decoder steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.creation import fill_constant_batch_size_like
from jfluid.layers.helper import check_variable

TRAINING, BEAM_SEARCH = 1, 2  # values of a decoder's `type`, as in Fluid


class InitState:
    """The value of a state before the first step.

    Args:
        init: the value, a Variable; None fills one.
        shape: of that one, where -1 is the batch.
        value: the number that it is filled with.
        init_boot: a Variable that has the batch.
        need_reorder: whether the rows of `init` are in the order of the batch, while `DynamicRNN`
            works on the longest sequence first: needed in training for batches of more than one.
        dtype: of a value that is filled.

    Raises ProgramError where neither `init` nor `init_boot` is given.
    """

    def __init__(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        init_boot: Variable | None = None,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ):
        check_variable(init, "InitState", "init")
        if init is None:
            if init_boot is None or shape is None:
                raise errors.ProgramError("InitState: give init, or init_boot (which has the batch) and shape")
            init = fill_constant_batch_size_like(input=init_boot, shape=shape, dtype=dtype, value=value)
        self._value, self._need_reorder = init, need_reorder

    @property
    def value(self) -> Variable:
        """The variable with the first value of the state."""
        return self._value

    @property
    def need_reorder(self) -> bool:
        """True if the rows are in the order of the batch."""
        return self._need_reorder


class Memory(Protocol):
    """Storage of a decoder's state from step to step."""

    def read(self) -> Variable:
        """Return the state that the step before has left."""

    def write(self, state: Variable) -> None:
        """Keep the state for the next step."""


class Decoder(Protocol):
    """Interface of a decoder for a StateCell."""

    def _memory(self, init: InitState) -> Memory:
        """Make the memory of a state."""


class StateCell:
    """Recurrent cell: the names of the inputs of a step, and of the states.

        cell = StateCell(inputs={"x": None}, states={"h": InitState(init=boot)}, out_state="h")

        @cell.state_updater
        def update(cell):
            x, h = cell.get_input("x"), cell.get_state("h")
            cell.set_state("h", layers.fc([x, h], size=width, act="tanh"))

    Args:
        inputs: for each input a Variable, or None where `compute_state` gives it.
        states: an InitState for each state.
        out_state: the state that outputs are computed from.
        name: has no effect on the program: the cell itself has no parameters.

    Raises ProgramError where a state is no InitState, or `out_state` is no state.
    """

    def __init__(
        self,
        inputs: Mapping[str, Variable | None],
        states: Mapping[str, InitState],
        out_state: str,
        name: str | None = None,
    ):
        for key, state in states.items():
            if not isinstance(state, InitState):
                raise errors.ProgramError(f"StateCell, states: expected an InitState for {key!r}, found {state!r:.60}")
        if out_state not in states:
            raise errors.ProgramError(f"StateCell, out_state: expected one of {', '.join(states)}, found {out_state!r}")
        self._inputs, self._init, self._out_state = dict(inputs), dict(states), out_state
        self._state_names = list(states)
        self._now: dict[str, Variable] = {}
        self._memories: dict[str, Memory] = {}
        self._updater: Callable[[StateCell], None] | None = None
        self._decoder: Decoder | None = None

    def _enter_decoder(self, decoder: Decoder) -> None:
        if self._decoder is not None:
            raise errors.ProgramError("StateCell: a different decoder with an open block uses this cell")
        self._decoder, self._now, self._memories = decoder, {}, {}

    def _leave_decoder(self, decoder: Decoder) -> None:
        if self._decoder is not decoder:
            raise errors.ProgramError("StateCell: it is not in this decoder")
        self._decoder = None

    def _begin(self) -> None:
        """Read all states at the first use in a decoder's block."""
        if self._decoder is not None and not self._memories:
            self._memories = {n: self._decoder._memory(s) for n, s in self._init.items()}
            self._now = {n: memory.read() for n, memory in self._memories.items()}

    def get_state(self, state_name: str) -> Variable:
        """Return a state. Raises ProgramError for an unknown one, or outside of a decoder."""
        self._begin()
        if state_name not in self._now:
            raise errors.ProgramError(
                f"StateCell.get_state: no state {state_name!r} here: the states are "
                f"{', '.join(self._init)}, in the block of a decoder"
            )
        return self._now[state_name]

    def get_input(self, input_name: str) -> Variable:
        """Return an input. Raises ProgramError where it is unknown or was not given."""
        found = self._inputs.get(input_name)
        if found is None:
            raise errors.ProgramError(
                f"StateCell.get_input: {input_name!r} was not given to compute_state, nor to the cell"
            )
        return found

    def set_state(self, state_name: str, state_value: Variable) -> None:
        """Change a state of this step. Raises ProgramError for an unknown one."""
        if state_name not in self._init:
            raise errors.ProgramError(
                f"StateCell.set_state: no state {state_name!r}: the states are {', '.join(self._init)}"
            )
        check_variable(state_value, "StateCell.set_state", "state_value")
        self._begin()
        self._now[state_name] = state_value

    def state_updater(self, updater: Callable[["StateCell"], None]) -> Callable[["StateCell"], None]:
        """Take the function that computes the states of a step from the cell; a decorator."""
        self._updater = updater
        return updater

    def compute_state(self, inputs: Mapping[str, Variable]) -> None:
        """Give inputs by name, and have the updater compute the states.

        Raises ProgramError for an unknown input, or without an updater.
        """
        self._begin()
        unknown = [n for n in inputs if n not in self._inputs]
        if unknown:
            raise errors.ProgramError(
                f"StateCell.compute_state: no input {unknown[0]!r}: the inputs are {', '.join(self._inputs)}"
            )
        if self._updater is None:
            raise errors.ProgramError(
                "StateCell.compute_state: set the function that computes the states with @cell.state_updater first"
            )
        self._inputs.update(inputs)
        self._updater(self)

    def update_states(self) -> None:
        """Keep the states for the next step."""
        self._begin()
        for name, memory in self._memories.items():
            memory.write(self._now[name])

    def out_state(self) -> Variable:
        """Return the state that outputs are computed from."""
        return self.get_state(self._out_state)
