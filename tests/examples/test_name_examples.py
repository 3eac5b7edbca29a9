"""Examples of Fluid's public names (examples/names) run, and print the texts of their comments.

All run in one process: each has its own programs, scope, names, folder and environment variables.
"""

import contextlib
import io
import os
import re
import runpy
from pathlib import Path

import pytest

import jfluid as fluid
from jfluid import surface
from jfluid.ops import registry
from scripts.pages import examples_of_names
from scripts.pages.examples_of_names import Example
from scripts.pages.public_names import _parameters_of, index, page, public_names, unknown_names
from tests.dynamic_shapes.interpreted import interpreted
from tests.slow_tests import nightly_but

EXAMPLES = list(examples_of_names.examples())
# Their programs take longest, a third of a second and more. Before each change tests of layers run the same names
# (tests/layers, tests/ops/detection, tests/contrib, tests/dataset and tests/modules), and all examples are parsed.
AT_NIGHT = {
    f"fluid.{name}"
    for name in """
    contrib.BeamSearchDecoder contrib.InitState contrib.layers.match_matrix_tensor
    contrib.layers.search_pyramid_hash contrib.layers.tree_conv contrib.layers.var_conv_2d
    contrib.mixed_precision.decorate dataset.DatasetFactory evaluator.ChunkEvaluator layers.BasicDecoder
    layers.BeamSearchDecoder layers.DynamicRNN layers.GreedyEmbeddingHelper layers.conv2d
    layers.deformable_conv layers.deformable_roi_pooling layers.detection_output layers.dynamic_gru
    layers.dynamic_lstm layers.dynamic_lstmp layers.generate_mask_labels layers.generate_proposal_labels
    layers.generate_proposals layers.linear_chain_crf layers.locality_aware_nms layers.matrix_nms
    layers.multi_box_head layers.multiclass_nms layers.nce layers.random_crop
    layers.retinanet_detection_output layers.retinanet_target_assign layers.roi_align
    layers.roi_perspective_transform layers.roi_pool layers.row_conv layers.rpn_target_assign
    layers.sampled_softmax_with_cross_entropy layers.sequence_conv layers.spectral_norm layers.ssd_loss
    layers.warpctc layers.yolov3_loss nets.img_conv_group nets.scaled_dot_product_attention
    nets.sequence_conv_pool
    """.split()
}
KEPT = [example for example in EXAMPLES if example.names[0] not in AT_NIGHT]


def printed(example: Example) -> list[str]:
    """Run an example in the current folder, and return the lines that it prints."""
    said = io.StringIO()
    script = Path("example.py")  # functions that become Programs need their source
    script.write_text(example.text)
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
        contextlib.redirect_stdout(said),
    ):
        try:
            runpy.run_path(str(script), run_name="__main__")
        finally:
            fluid.disable_dygraph()
    return said.getvalue().splitlines()


@pytest.mark.filterwarnings("ignore:this program is compiled anew for each batch of other lengths:RuntimeWarning")
@pytest.mark.parametrize("example", nightly_but(KEPT, EXAMPLES), ids=lambda example: example.names[0])
def test_example(example, tmp_path, monkeypatch):
    if example.not_run:
        return
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    try:
        lines = interpreted(printed, example)
    finally:
        for name in [n for n, definition in registry._OPS.items() if not registry.is_built_in(definition)]:
            del registry._OPS[name]  # an operator that the example registered
        os.environ.clear()
        os.environ.update(before)
    assert [text for text in example.printed() if text not in lines] == [], lines


def test_each_public_name_has_an_example_that_uses_it():
    """`public_names` raises for a name without an example."""
    found = [name for one in public_names() for name in one.names]
    assert len(found) == len(set(found)) == sum(map(len, surface.NAMES.values()))
    assert list(unknown_names()) == []
    for example in EXAMPLES:
        compile(example.text, example.file, "exec")
        for name in example.names:
            last = name.rpartition(".")[2]
            assert last in example.text, name


def test_examples_at_night_exist():
    assert {example.names[0] for example in EXAMPLES} >= AT_NIGHT


def test_few_examples_are_not_run():
    assert sum(bool(example.not_run) for example in EXAMPLES) <= 4
    assert sum(len(example.printed()) for example in EXAMPLES) > 500


def test_pages_have_their_sections():
    pages = {one.names[0]: page(one) for one in public_names()}
    fc = pages["fluid.layers.fc"]
    for heading in ("Arguments", "Result", "Errors", "Accepted types", "Example", "Differences from Fluid", "Source"):
        assert f"## {heading}" in fc
    assert "size: int," in fc and "jfluid/layers/nn.py" in fc
    assert "AdamOptimizer" in pages["fluid.optimizer.Adam"]
    assert all("## Example" in text for text in pages.values())
    assert "[`fc`](names/layers.fc.md)" in index()
    for one in public_names():  # each call has a table of its arguments, each method a summary
        text = pages[one.names[0]]
        assert "## Arguments" in text or not _parameters_of(one.value), one.names
        assert not re.search(r"^\| `[^|]*\(?\)?` \|  \|$", text, re.MULTILINE), one.names
    bilinear = pages["fluid.layers.resize_bilinear"]
    assert "see [`image_resize`](layers.image_resize.md)" in bilinear and "| `align_mode` | `int` | `1` |" in bilinear
    assert "[`scale`]" not in bilinear  # an argument, not the layer of this name


def test_examples_state_each_output_once():
    for example in EXAMPLES:
        assert not re.search(r"# (.+)(?:  |\n)# \1$", example.text, re.MULTILINE), example.names
