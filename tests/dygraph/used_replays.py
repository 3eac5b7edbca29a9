"""Which replays a test uses."""

from jfluid.dygraph import replays


def used(monkeypatch, *names):
    """Return a list that gets the class name of each replay that is used; of the given names alone, if any."""
    found = []

    def noted(function):
        def replay(graph, known, *given):
            if not names or type(known).__name__ in names:
                found.append(type(known).__name__)
            return function(graph, known, *given)

        return replay

    for function in (replays._replay_layer, replays._replay_updates, replays._replay_backward):
        monkeypatch.setattr(replays, function.__name__, noted(function))
    return found
