"""The picture of ctr_dnn.py."""

import numpy as np

SMOOTHED = 20  # points of the loss


def draw(path, course, best, predicted, true):
    """The loss, the test AUC with the best reachable one, and predicted against true probabilities
    of the test lines.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    at, losses = np.array(course.losses).T
    left.plot(at, losses, linewidth=0.5, alpha=0.5, label="a batch of the first trainer")
    if len(losses) >= SMOOTHED:
        mean = np.convolve(losses, np.full(SMOOTHED, 1 / SMOOTHED), "valid")
        left.plot(at[SMOOTHED // 2 :][: len(mean)], mean, "C0", label=f"mean of {SMOOTHED} of them")
    left.set(xlabel="training lines", ylabel="loss")
    left.legend()
    lines, aucs = zip(*course.tests, strict=True)
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
