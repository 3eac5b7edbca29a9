"""Texts of `ProgramTranslator.get_code` are Fluid's."""

import ast
import json
from pathlib import Path

import pytest

import jfluid as fluid
from tests.parity import converted_texts as cases

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "converted_texts.json").read_text())


def test_each_function_has_a_text_of_fluid():
    assert sorted(GOLDEN) == sorted(cases.FUNCTIONS) and len(GOLDEN) > 50


@pytest.mark.parametrize("name", cases.FUNCTIONS)
def test_text(name):
    assert cases.ordered(cases.text(fluid, cases.FUNCTIONS[name])) == cases.ordered(GOLDEN[name])


@pytest.mark.parametrize("function", cases.WRONG_IN_FLUID, ids=lambda function: function.__name__)
def test_where_fluids_text_is_wrong_the_text_is_what_runs(function):
    text = cases.text(fluid, function)
    ast.parse(text)
    assert "_jf." in text


def test_numbers_of_names_count_up_from_text_to_text():
    translator = fluid.dygraph.ProgramTranslator()
    with fluid.unique_name.guard():
        translator.get_code(cases.if_tensor)
        assert "true_fn_1" in translator.get_code(cases.if_tensor)
