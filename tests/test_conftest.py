"""Functions of private modules of JAX that conftest.py replaces: this version of JAX calls the replacements."""

import jax
import pytest
from jax._src.interpreters import mlir

from tests import conftest


def compiled(number):
    return jax.jit(lambda x: x + number).lower(1.0).compile()


@pytest.mark.optimised
def test_optimised_tests_pass_options_to_xla(monkeypatch):
    compiled(1)
    monkeypatch.setitem(conftest.OPTIMISED, "xla_unknown_option", "1")
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_unknown_option"):
        compiled(2)


def test_programs_share_a_context_of_mlir():
    contexts = mlir.make_ir_context.func
    contexts.left = 0
    compiled(3)
    first, left = contexts.context, contexts.left
    compiled(4)
    assert contexts.context is first and contexts.left < left
