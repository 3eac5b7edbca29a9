"""`fluid.evaluator`: counts kept in the program, over several batches."""

import numpy as np

import jfluid as fluid


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
        np.testing.assert_allclose([precision, recall, score], [[3 / 4], [3 / 6], [3 / 5]], rtol=1e-6)
        assert precision.dtype == "float32"
        evaluator.reset(exe)
        assert evaluator.eval(exe) == (0, 0, 0)


def test_edit_distances_of_all_batches():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        found, wanted = (fluid.data(n, [-1, 1], "int64", lod_level=1) for n in ("found", "wanted"))
        evaluator = fluid.evaluator.EditDistance(found, wanted, ignored_tokens=[9])
    assert [s.name for s in evaluator.states] == [
        "edit_distance_0_0_total_distance",
        "edit_distance_0_1_seq_num",
        "edit_distance_0_2_instance_error",
    ]
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        evaluator.reset(exe)
        feed = {"found": tags([0, 9, 3, 4]), "wanted": tags([0, 9, 3, 5])}  # exact; one of two
        for _ in range(2):
            total, inexact = exe.run(main, feed=feed, fetch_list=evaluator.metrics)
            assert total == 0.5 and inexact == 1
        mean, share = evaluator.eval(exe)
        assert mean.dtype == share.dtype == "float32"
        np.testing.assert_allclose([mean, share], [[1 / 4], [1 / 2]])
        evaluator.reset(exe)
        assert np.isnan(evaluator.eval(exe)).all()


def test_mean_average_precision_of_all_batches_until_it_is_reset():
    boxes = np.array([[0.1, 0.1, 0.3, 0.3], [0.5, 0.5, 0.9, 0.9]], "float32")

    def lod_tensor(rows, lengths):
        return fluid.create_lod_tensor(rows, [lengths], fluid.CPUPlace())

    def found(label, score, box):
        return lod_tensor(np.array([[label, score, *box]], "float32"), [1, 0])

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        detected, box = (fluid.data(n, [-1, w], lod_level=1) for n, w in (("detected", 6), ("box", 4)))
        label, hard = (fluid.data(n, [-1, 1], "int32", lod_level=1) for n in ("label", "hard"))
        evaluator = fluid.evaluator.DetectionMAP(detected, label, box, hard, class_num=3, evaluate_difficult=False)
    assert [s.name for s in evaluator.states] == [
        "map_eval_0_0_accum_pos_count",
        "map_eval_0_1_accum_true_pos",
        "map_eval_0_2_accum_false_pos",
    ]
    feed = {
        "box": lod_tensor(boxes, [1, 1]),
        "label": lod_tensor(np.array([[1], [2]], "int32"), [1, 1]),
        "hard": lod_tensor(np.array([[0], [0]], "int32"), [1, 1]),
        "detected": found(1, 0.9, boxes[0]),
    }
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()) as _:
        exe.run(startup)

        def run():
            return [float(v[0]) for v in exe.run(main, feed, list(evaluator.get_map_var()))]

        assert run() == [0.5, 0.5]  # class 2 is not found
        feed["detected"] = found(1, 0.95, boxes[1])
        assert run() == [0.0, 0.125]  # of class 1 the better of two is wrong, and one is missing
        right = fluid.global_scope().find_var("map_eval_0_1_accum_true_pos").get_tensor()
        assert right.lod() == [[0, 0, 2, 2]]
        np.testing.assert_allclose(np.array(right), [[0.9, 1], [0.95, 0]], rtol=1e-6)
        feed["hard"] = lod_tensor(np.array([[1], [0]], "int32"), [1, 1])
        evaluator.reset(exe)
        assert run() == [0.0, 0.0]
