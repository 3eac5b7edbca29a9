"""A decoder that searches for the best sentences: for inference."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jfluid import errors
from jfluid.contrib.decoder.state_cell import BEAM_SEARCH, InitState, StateCell
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.activation import log
from jfluid.layers.arrays import array_read, array_write
from jfluid.layers.beam_search import beam_search, beam_search_decode
from jfluid.layers.control_flow import Switch, While
from jfluid.layers.creation import fill_constant, zeros
from jfluid.layers.embedding import embedding
from jfluid.layers.helper import check_variable
from jfluid.layers.indexing import topk
from jfluid.layers.logic import is_empty, less_than
from jfluid.layers.math import elementwise_add
from jfluid.layers.nn import fc
from jfluid.layers.sequence_lod import lod_reset, sequence_expand
from jfluid.layers.shape import reshape
from jfluid.layers.tensor import increment


def _started(parent: Block, what: str, value: Variable, first: Variable) -> Variable:
    """Make an array in a block, with `value` at place `first`."""
    name = unique_name.generate(what)
    array = parent.create_var(name=name, type=VarType.LOD_TENSOR_ARRAY, dtype=value.dtype)
    parent.append_op("write_to_array", {"X": value, "I": first}, {"Out": array})
    return array


class _ArrayMemory:
    """A state in an array of all steps, outside of the loop."""

    def __init__(self, parent: Block, init: InitState):
        name = unique_name.generate("array_state_counter")
        self.counter = parent.create_var(name=name, dtype="int64", shape=[1], stop_gradient=True)
        parent.append_op(
            "fill_constant",
            {},
            {"Out": self.counter},
            {"shape": [1], "dtype": int(VarType.INT64), "value": 0.0, "force_cpu": True},
        )
        self.array = _started(parent, "array_state_array", init.value, self.counter)

    def read(self) -> Variable:
        return array_read(array=self.array, i=self.counter)

    def write(self, state: Variable) -> None:
        increment(x=self.counter, value=1, in_place=True)
        array_write(state, array=self.array, i=self.counter)


class BeamSearchDecoder:
    """Searches for the best sentences with a StateCell, step by step until all have ended.

        decoder = BeamSearchDecoder(cell, init_ids, init_scores, words, width, beam_size=4)
        decoder.decode()
        sentences, scores = decoder()

    The loop runs on the host, between compiled parts of a step. Another way to decode is a subclass
    that overrides `decode`.

    Args:
        state_cell: a StateCell.
        init_ids, init_scores: the word that each sentence begins with, int64 [batch, 1], and its
            score [batch, 1], both with a LoD of two levels.
        target_dict_dim: how many words there are.
        word_dim: the width of their embeddings.
        input_var_dict: inputs of the cell that stay the same for a sentence, by name; all other
            inputs are the embedding of the word before.
        topk_size: how many words after each prefix are looked at.
        sparse_emb: whether the gradient of the embeddings is sparse.
        max_len: the number of the last step.
        beam_size: how many hypotheses are kept for each sentence.
        end_id: the word that ends a sentence. As in Fluid, `decode` takes 1 for it in the search
            itself, whatever this says.
        name: has no effect on the program.

    Raises ProgramError where its methods are called in a different order than this.
    """

    BEFORE_BEAM_SEARCH_DECODER, IN_BEAM_SEARCH_DECODER, AFTER_BEAM_SEARCH_DECODER = range(3)

    def __init__(
        self,
        state_cell: StateCell,
        init_ids: Variable,
        init_scores: Variable,
        target_dict_dim: int,
        word_dim: int,
        input_var_dict: Mapping[str, Variable] | None = None,
        topk_size: int = 50,
        sparse_emb: bool = True,
        max_len: int = 100,
        beam_size: int = 1,
        end_id: int = 1,
        name: str | None = None,
    ):
        self._counter = zeros(shape=[1], dtype="int64")
        self._counter.stop_gradient = True
        self._max_len = fill_constant(shape=[1], dtype="int64", value=max_len)
        self._going = less_than(x=self._counter, y=self._max_len)
        self._loop = While(self._going)
        self._first = fill_constant(shape=[1], dtype="int64", value=0, force_cpu=True)
        self._cell = state_cell
        state_cell._enter_decoder(self)
        self._status = BeamSearchDecoder.BEFORE_BEAM_SEARCH_DECODER
        self._arrays: dict[str, Variable] = {}
        self._written: list[tuple[Variable, Variable]] = []
        self._ids: Variable | None = None
        self._scores: Variable | None = None
        self._init_ids, self._init_scores = init_ids, init_scores
        self._words, self._width, self._sparse = target_dict_dim, word_dim, sparse_emb
        self._fixed = dict(input_var_dict or {})
        self._topk_size, self._beam_size, self._end_id = topk_size, beam_size, end_id

    def _parent(self) -> Block:
        parent = default_main_program().current_block().parent
        assert parent is not None  # in the block of the loop
        return parent

    def _memory(self, init: InitState) -> _ArrayMemory:
        return _ArrayMemory(self._parent(), init)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Return a context in which one step is made.

        At its end the arguments of `update_array` are written, unless `early_stop` was reached.
        """
        if self._status != BeamSearchDecoder.BEFORE_BEAM_SEARCH_DECODER:
            raise errors.ProgramError("BeamSearchDecoder.block: it can be made once only")
        self._status = BeamSearchDecoder.IN_BEAM_SEARCH_DECODER
        with self._loop.block():
            yield
            with Switch() as switch, switch.case(self._going):
                increment(x=self._counter, value=1.0, in_place=True)
                for value, array in self._written:
                    array_write(x=value, i=self._counter, array=array)
                less_than(x=self._counter, y=self._max_len, cond=self._going)
        self._status = BeamSearchDecoder.AFTER_BEAM_SEARCH_DECODER
        self._cell._leave_decoder(self)

    def _only_inside(self, method: str) -> None:
        if self._status != BeamSearchDecoder.IN_BEAM_SEARCH_DECODER:
            raise errors.ProgramError(f"BeamSearchDecoder.{method}: use it inside of `with decoder.block():`")

    @property
    def state_cell(self) -> StateCell:
        """The cell, in the block."""
        self._only_inside("state_cell")
        return self._cell

    @property
    def type(self) -> int:
        """2, Fluid's number of decoders for beam search."""
        return BEAM_SEARCH

    def early_stop(self) -> None:
        """Make this step the last step, and discard the step's results."""
        fill_constant(shape=[1], value=0, dtype="bool", force_cpu=True, out=self._going)

    def decode(self) -> None:
        """Build the loop over steps.

        Each step embeds the previous words, lets the cell compute its states, and chooses the best words by a softmax
        layer on the cell's `out_state`.
        """
        with self.block():
            before = self.read_array(init=self._init_ids, is_ids=True)
            score = self.read_array(init=self._init_scores, is_scores=True)
            word = embedding(
                input=before,
                size=[self._words, self._width],
                dtype="float32",
                is_sparse=self._sparse,
            )
            read = {n: self.read_array(init=v) for n, v in self._fixed.items()}
            fixed = {n: sequence_expand(v, score) for n, v in read.items()}
            for name in self._cell._state_names:
                state = self._cell.get_state(name)
                self._cell.set_state(name, sequence_expand(state, score))
            others = [n for n in self._cell._inputs if n not in fixed]
            self._cell.compute_state(inputs=fixed | dict.fromkeys(others, word))
            out = lod_reset(x=self._cell.out_state(), y=score)
            chances, indices = topk(fc(out, self._words, act="softmax"), k=self._topk_size)
            total = elementwise_add(x=log(chances), y=reshape(score, shape=[-1]), axis=0)
            chosen, scores = beam_search(before, score, indices, total, self._beam_size, end_id=1, level=0)
            with Switch() as switch:
                with switch.case(is_empty(chosen)):
                    self.early_stop()
                with switch.default():
                    self._cell.update_states()
                    self.update_array(before, chosen)
                    self.update_array(score, scores)
                    for name, array in read.items():
                        self.update_array(array, fixed[name])

    def read_array(self, init: Variable, is_ids: bool = False, is_scores: bool = False) -> Variable:
        """Return the value that `update_array` wrote in the previous step; `init` in the first step.

        Args:
            is_ids, is_scores: whether it is the array of words, or of scores, of the sentences.
        """
        self._only_inside("read_array")
        if is_ids and is_scores:
            raise errors.ProgramError("BeamSearchDecoder.read_array: it holds ids or scores")
        if not isinstance(init, Variable):
            raise TypeError(f"BeamSearchDecoder.read_array: expected a Variable, found {init!r:.60}")
        array = _started(self._parent(), "beam_search_decoder_array", init, self._first)
        if is_ids:
            self._ids = array
        elif is_scores:
            self._scores = array
        found = array_read(array=array, i=self._counter)
        self._arrays[found.name] = array
        return found

    def update_array(self, array: Variable, value: Variable) -> None:
        """Write a value for the next step, into the array that `read_array` gave `array` from."""
        self._only_inside("update_array")
        for given in (array, value):
            if not isinstance(given, Variable):
                raise TypeError(f"BeamSearchDecoder.update_array: expected a Variable, found {given!r:.60}")
        if array.name not in self._arrays:
            raise errors.ProgramError(f"BeamSearchDecoder.update_array: {array.name} is not a result of read_array")
        self._written.append((value, self._arrays[array.name]))

    def __call__(self) -> tuple[Variable, Variable]:
        """Return the sentences and the scores of their words, with a LoD of two levels."""
        if self._status != BeamSearchDecoder.AFTER_BEAM_SEARCH_DECODER:
            raise errors.ProgramError("BeamSearchDecoder: its sentences are there after its block")
        check_variable(self._ids, "BeamSearchDecoder", "ids")
        if self._ids is None or self._scores is None:
            raise errors.ProgramError("BeamSearchDecoder: read_array was called neither for ids nor for scores")
        return beam_search_decode(ids=self._ids, scores=self._scores, beam_size=self._beam_size, end_id=self._end_id)
