"""Distillers: losses by which a student learns from a teacher.

`GraphWrapper.merge` puts the teacher's graph into the student's graph first.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from jfluid import layers
from jfluid.contrib.slimming.graph import GraphWrapper
from jfluid.ir.program import program_guard
from jfluid.ir.variable import Variable

__all__ = [
    "FSPDistiller",
    "FSPDistillerPass",
    "L2Distiller",
    "L2DistillerPass",
    "SoftLabelDistiller",
    "SoftLabelDistillerPass",
]


class _Pass(ABC):
    """Adds a loss to a graph in place; `distiller_loss` is `apply` under its other name."""

    def __init__(self, distillation_loss_weight: float):
        self.distillation_loss_weight = distillation_loss_weight

    def apply(self, graph: GraphWrapper) -> GraphWrapper:
        """Add the weighted loss to the graph's "loss", and note it among the graph's `out_nodes`.

        Raises ProgramError for a variable that the graph lacks.
        """
        with program_guard(graph.program):
            own = self._loss(graph) * self.distillation_loss_weight
            total: Any = own
            if "loss" in graph.out_nodes:
                total = own + graph.var(graph.out_nodes["loss"])._var
            graph.out_nodes["loss"] = total.name
            graph.out_nodes[self._key()] = own.name
        return graph

    distiller_loss = apply

    @abstractmethod
    def _loss(self, graph: GraphWrapper) -> Variable:
        """Return the loss, before it is weighted."""

    @abstractmethod
    def _key(self) -> str:
        """Return the loss's name among the graph's `out_nodes`."""


class L2Distiller(_Pass):
    """The mean squared difference of two feature maps.

    Args:
        student_feature_map, teacher_feature_map: names of variables of one shape.
        distillation_loss_weight: the factor of the loss.
    """

    def __init__(
        self,
        student_feature_map: str,
        teacher_feature_map: str,
        distillation_loss_weight: float = 1,
    ):
        super().__init__(distillation_loss_weight)
        self.student_feature_map, self.teacher_feature_map = (
            student_feature_map,
            teacher_feature_map,
        )

    def _loss(self, graph: GraphWrapper) -> Variable:
        student, teacher = (graph.var(n)._var for n in (self.student_feature_map, self.teacher_feature_map))
        return layers.reduce_mean(layers.square(student - teacher))

    def _key(self) -> str:
        return f"l2loss_{self.student_feature_map}_{self.teacher_feature_map}"


class FSPDistiller(_Pass):
    """The mean squared difference of the FSP matrices of sections of two nets.

    Args:
        student_pairs, teacher_pairs: for each section the names of its first and last feature map, of
            one height and width.
        distillation_loss_weight: the factor of the sum of the losses.

    Source: Yim et al., "A gift from knowledge distillation", CVPR 2017.
    """

    def __init__(
        self,
        student_pairs: Sequence[tuple[str, str]],
        teacher_pairs: Sequence[tuple[str, str]],
        distillation_loss_weight: float = 1,
    ):
        super().__init__(distillation_loss_weight)
        self.student_pairs, self.teacher_pairs = student_pairs, teacher_pairs

    def _loss(self, graph: GraphWrapper) -> Variable:
        def matrix(pair: tuple[str, str]) -> Variable:
            first, last = (graph.var(n)._var for n in pair)
            return layers.fsp_matrix(first, last)

        return layers.sum(
            [
                layers.reduce_mean(layers.square(matrix(s) - matrix(t)))
                for s, t in zip(self.student_pairs, self.teacher_pairs, strict=True)
            ]
        )

    def _key(self) -> str:
        return "fsp_distillation_loss"


class SoftLabelDistiller(_Pass):
    """The cross entropy of the student's softmax with the teacher's as labels.

    Args:
        student_feature_map, teacher_feature_map: names of logits of one shape.
        student_temperature, teacher_temperature: divisors of the logits.
        distillation_loss_weight: the factor of the loss.

    Source: Hinton et al., "Distilling the knowledge in a neural network", 2015.
    """

    def __init__(
        self,
        student_feature_map: str | None = None,
        teacher_feature_map: str | None = None,
        student_temperature: float = 1.0,
        teacher_temperature: float = 1.0,
        distillation_loss_weight: float = 1,
    ):
        super().__init__(distillation_loss_weight)
        self.student_feature_map, self.teacher_feature_map = (
            student_feature_map,
            teacher_feature_map,
        )
        self.student_temperature, self.teacher_temperature = (
            student_temperature,
            teacher_temperature,
        )

    def _loss(self, graph: GraphWrapper) -> Variable:
        student, teacher = (
            layers.softmax(graph.var(str(name))._var / temperature)
            for name, temperature in (
                (self.student_feature_map, self.student_temperature),
                (self.teacher_feature_map, self.teacher_temperature),
            )
        )
        teacher.stop_gradient = True
        return layers.reduce_mean(layers.cross_entropy(student, teacher, soft_label=True))

    def _key(self) -> str:
        return f"soft_label_loss_{self.student_feature_map}_{self.teacher_feature_map}"


L2DistillerPass, FSPDistillerPass, SoftLabelDistillerPass = (
    L2Distiller,
    FSPDistiller,
    SoftLabelDistiller,
)
