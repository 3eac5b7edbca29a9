"""`fluid.evaluator`: counts kept in the program, over several batches."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors


def tags(values):
    return fluid.create_lod_tensor(np.array(values)[:, None], [[2, 2]], fluid.CPUPlace())


def test_chunk_evaluator_counts_over_batches_until_it_is_reset():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        found, wanted = (fluid.data(n, [-1, 1], "int64", lod_level=1) for n in ("found", "wanted"))
        evaluator = fluid.evaluator.ChunkEvaluator(found, wanted, "plain", 3)
    assert [s.name for s in evaluator.states] == [
        "chunk_eval_0_0_num_infer_chunks",
        "chunk_eval_0_1_num_label_chunks",
        "chunk_eval_0_2_num_correct_chunks",
    ]
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        evaluator.reset(exe)
        first = exe.run(
            main,
            feed={"found": tags([0, 1, 1, 3]), "wanted": tags([0, 1, 2, 3])},
            fetch_list=evaluator.metrics,
        )
        np.testing.assert_allclose(first, np.full((3, 1), 2 / 3), rtol=1e-6)
        exe.run(main, feed={"found": tags([0, 3, 3, 3]), "wanted": tags([0, 1, 2, 3])})
        precision, recall, score = evaluator.eval(exe)
        np.testing.assert_allclose(
            [precision, recall, score], [[3 / 4], [3 / 6], [3 / 5]], rtol=1e-6
        )
        assert precision.dtype == "float32"
        evaluator.reset(exe)
        assert evaluator.eval(exe) == (0, 0, 0)


def test_evaluators_that_are_missing_say_so():
    with pytest.raises(errors.UnsupportedError, match="evaluator.DetectionMAP"):
        fluid.evaluator.DetectionMAP(None, None, None)
