"""Clicks that a known model draws: a user, an article, the hour, and whether it was clicked."""
import numpy as np

USERS, ARTICLES, HOURS = 1000, 500, 24


def batches(size, count, seed=0):
    random = np.random.RandomState(seed)
    taste = np.random.RandomState(7).randn(USERS)
    appeal = np.random.RandomState(8).randn(ARTICLES)
    for number in xrange(count):
        user = random.randint(0, USERS, size)
        article = random.randint(0, ARTICLES, size)
        hour = random.randint(0, HOURS, size)
        score = taste[user] + appeal[article] - (hour < 6)
        click = random.rand(size) < 1 / (1 + np.exp(-score))
        yield zip(user, article, hour, click.astype("int64"))
