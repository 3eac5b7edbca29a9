"""The picture of ctr_dnn.py."""


def draw(path, course, best, predicted, true):
    """The loss with the rows in the tables, the test AUC with the best reachable one, and predicted against true
    probabilities of the test lines."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    lines, aucs, rows = zip(*course.tests, strict=True)
    left.plot(*zip(*course.losses, strict=True), linewidth=0.8)
    left.set(xlabel="training lines", ylabel="loss of a batch of the first trainer")
    if rows[0] is not None:
        counts = left.twinx()
        counts.plot((0, *lines), (0, *rows), "C1.-", label="rows in the tables")
        counts.set(ylabel="rows in the tables", ylim=(0, 1.1 * max(rows)))
        counts.legend(loc="lower right")
    middle.plot(lines, aucs, "o-", label=f"test: {aucs[-1]:.4f}")
    middle.axhline(best, color="black", linestyle="--", label=f"best reachable: {best:.4f}")
    middle.set(xlabel="training lines", ylabel="AUC", xlim=(0, None))
    middle.legend(loc="lower right")
    right.hexbin(true, predicted, gridsize=50, extent=(0, 1, 0, 1), bins="log", cmap="Blues")
    right.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=0.8)
    right.set(xlabel="true probability of a click", ylabel="predicted probability", title="test lines")
    for axes in (left, middle):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
