"""The smallest part of a plan that still fails."""

from collections.abc import Callable

from tests.chaos.plan import Plan

TRIES = 3  # a fault that depends on the moment does not show each time


def shrunk(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """A plan that fails from which no action, and no process of an action, can be left out."""
    while (
        smaller := next((each for each in _smaller(plan) if any(fails(each) for _ in range(TRIES))), None)
    ) is not None:
        plan = smaller
    return plan


def _smaller(plan: Plan) -> list[Plan]:
    """Plans that do less, the least first."""
    found = []
    for i in range(len(plan.actions)):
        found.append(plan.model_copy(update={"actions": plan.actions[:i] + plan.actions[i + 1 :]}))
    for i, action in enumerate(plan.actions):
        for who in action.who if len(action.who) > 1 else ():
            less = action.model_copy(update={"who": tuple(other for other in action.who if other != who)})
            found.append(plan.model_copy(update={"actions": (*plan.actions[:i], less, *plan.actions[i + 1 :])}))
    return found
