"""Placement of parameter pieces on servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ir.operator import Operator
from jfluid.transpiler.config import DistributeTranspilerConfig
from jfluid.transpiler.parameter_server.layout import JobLayout, ParameterLayout, Piece
from jfluid.transpiler.parameter_server.slicing import slices
from jfluid.transpiler.parameter_server.updates import ParameterUpdate, Updates
from jfluid.transpiler.ps_dispatcher import PSDispatcher


@dataclass(frozen=True)
class UpdatedPiece:
    """A piece of a parameter, and the update that its server makes.

    Attributes:
        index: its position among the parameter's pieces.
    """

    update: ParameterUpdate
    piece: Piece
    index: int

    @property
    def param(self) -> str:
        """The name of the piece: "w", or "w.block0"."""
        return self.piece.name

    @property
    def label(self) -> str:
        """Suffix of the names of the piece's variables, ".block0"; empty for a parameter in one piece."""
        return self.piece.name.removeprefix(self.update.param.name)

    @property
    def grad(self) -> str:
        """The name of the piece's gradient: "w@GRAD", "w@GRAD.block0", or of a distributed table "w@GRAD.pserver_0"."""
        return self.update.grad.name + (f".pserver_{self.index}" if self.update.distributed else self.label)


@dataclass(frozen=True)
class ParameterPlacement:
    """Decisions of DistributeTranspiler before the rewrite of a program.

    Attributes:
        held: the pieces of each parameter, by its name, in the program's order.
        sending: the parameters' names in the order of dispatch.
        sums: True if each server sums the gradients of all trainers before an update; the gradients of trainers have
            separate names.
    """

    config: DistributeTranspilerConfig
    updates: Updates
    endpoints: list[str]
    trainers: int
    trainer_id: int
    sync: bool
    held: dict[str, list[UpdatedPiece]]
    sending: list[str]

    @property
    def sums(self) -> bool:
        return self.sync or self.config.completely_not_async

    @property
    def counter(self) -> Operator | None:
        """The operator that counts steps for the schedule, where the servers sum the trainers' counts."""
        if self.sync or self.config.geo_sgd_mode:
            return None
        return next((op for op in self.updates.schedule if op.type == "increment"), None)

    def counts(self) -> list[str]:
        """Return the names of the trainers' counts of steps; none where the servers count."""
        counter = self.counter
        return [f"{counter.output('Out')[0]}.trainer_{t}" for t in range(self.trainers)] if counter is not None else []

    def at(self, endpoint: str) -> list[UpdatedPiece]:
        """Return the pieces of one server."""
        server = self.endpoints.index(endpoint)
        return [h for name in self.held for h in self.held[name] if h.piece.server == server]

    def endpoints_of(self, held: Sequence[UpdatedPiece]) -> list[str]:
        """Return the servers of pieces."""
        return [self.endpoints[h.piece.server] for h in held]

    @cached_property
    def layout(self) -> JobLayout:
        """Layout of the parameters."""
        return JobLayout(
            tuple(self.endpoints),
            {
                name: ParameterLayout(
                    name, tuple(held[0].update.param.shape), tuple(h.piece for h in held), held[0].update.distributed
                )
                for name, held in self.held.items()
            },
        )

    def sent(self, held: UpdatedPiece, trainer: int) -> str:
        """Return the name under which a trainer sends a piece's gradient."""
        return f"{held.grad}.trainer_{trainer}" if self.sums else held.grad


def place(
    config: DistributeTranspilerConfig,
    updates: Updates,
    endpoints: Sequence[str],
    trainers: int,
    trainer_id: int,
    sync: bool,
    seed: int,
) -> ParameterPlacement:
    """Cut the parameters and give each piece a server.

    `seed` decides the order where parameters stay whole.

    Raises ProgramError when the dispatcher names an endpoint that is no server, UnsupportedError
    for a distributed table whose update needs the whole of it.
    """
    dispatcher = config.dispatcher(list(endpoints))
    pieces = {u.param.name: _pieces(config, u, len(endpoints)) for u in updates.all}
    order = list(updates.all)
    if not config.slice_var_up:
        order = [order[i] for i in np.random.RandomState(seed).permutation(len(order))]
    held = {u.param.name: _dispatch(dispatcher, u, pieces[u.param.name], endpoints) for u in order}
    return ParameterPlacement(
        config,
        updates,
        list(endpoints),
        trainers,
        trainer_id,
        sync,
        {u.param.name: held[u.param.name] for u in updates.all},
        [u.param.name for u in order],
    )


def table_options(param: Any) -> dict[str, Any]:
    """Return the fields of `jfluid.ps_server.specs.TableSpec` that a parameter sets (see ParamAttr)."""
    given = {name: getattr(param, name, None) for name in ("entry", "max_rows", "max_bytes")}
    return {name: value for name, value in given.items() if value is not None}


def _pieces(
    config: DistributeTranspilerConfig, update: ParameterUpdate, servers: int
) -> list[tuple[int, tuple[int, ...]]]:
    """(first row, shape) of each piece."""
    shape = update.param.shape
    if (given := list(table_options(update.param))) and not update.distributed:
        raise errors.UnsupportedError(
            f"parameter {update.param.name}: {given[0]}: all its rows are there from the beginning; "
            f"build the embedding with is_distributed=True, or leave {given[0]} out"
        )
    if update.distributed or not config.slice_var_up or (update.whole_only and not config.geo_sgd_mode):
        return slices(shape, 1, config.min_block_size)
    return slices(shape, servers, config.min_block_size)


class _Name(str):
    """A name; dispatchers written for Fluid's C++ descriptions call it."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


def _dispatch(
    dispatcher: PSDispatcher,
    update: ParameterUpdate,
    pieces: list[tuple[int, tuple[int, ...]]],
    endpoints: Sequence[str],
) -> list[UpdatedPiece]:
    name = update.param.name
    if update.distributed:
        ((first, shape),) = pieces
        return [UpdatedPiece(update, Piece(name, i, first, shape), i) for i in range(len(endpoints))]
    labels = [f".block{i}" for i in range(len(pieces))] if len(pieces) > 1 else [""]
    given = dispatcher.dispatch(
        [
            SimpleNamespace(name=_Name(update.grad.name + label), shape=shape)
            for label, (_, shape) in zip(labels, pieces, strict=True)
        ]
    )
    if len(given) != len(pieces) or not set(given) <= set(endpoints):
        raise errors.ProgramError(
            f"{type(dispatcher).__name__}.dispatch: expected one of {', '.join(endpoints)} for each of "
            f"{len(pieces)} pieces of {update.grad.name}, found {given!r}"
        )
    return [
        UpdatedPiece(update, Piece(name + label, list(endpoints).index(endpoint), first, shape), i)
        for i, (label, (first, shape), endpoint) in enumerate(zip(labels, pieces, given, strict=True))
    ]
