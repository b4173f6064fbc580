"""The way to a page: actions that lead from the search page to it, and back from pages to an action.

An address names a page, not how one got there. Walking to it through ``advance`` keeps the web site
and the browser to the same rules as every other session.
"""

from dataclasses import replace

from istar_envs.language import InvalidAction
from istar_envs.webshop.labels import Button, clean
from istar_envs.webshop.session import Action, PageKind, State, admissible, advance, parse_action
from istar_envs.webshop.shop import Shop


def way_to(shop: Shop, state: State) -> tuple[Action, ...]:
    """Return actions that lead from the search page to a state, if any do.

    Args:
        shop: Where the visit takes place.
        state: The wanted state; ``opened`` is ignored.

    Raises:
        EnvError: If it has chosen options of a product that the catalogue does not have.
    """
    if state.kind is PageKind.SEARCH:
        return ()
    way = [Action("search", state.query)]
    way += [Action("click", Button.NEXT.lower())] * (state.number - 1)
    if state.kind is PageKind.RESULTS:
        return tuple(way)
    way.append(Action("click", clean(state.asin)))
    if state.chosen:
        label_of = {choice: label for label, choice in shop.item(state.asin).choices.items()}
        way += [Action("click", label_of[choice]) for choice in state.chosen]
    if state.kind is PageKind.DONE:
        way.append(Action("click", Button.BUY.lower()))
    elif state.kind is not PageKind.ITEM:
        way.append(Action("click", state.kind.value))
    return tuple(way)


def follow(shop: Shop, way: tuple[Action, ...]) -> State | InvalidAction:
    """Act from the search page on; stop where an action is not possible.

    Returns:
        Where the way ends, or why it cannot be gone.
    """
    state = State()
    for action in way:
        after = advance(shop, state, action)
        if isinstance(after, InvalidAction):
            return after
        state = after
    return state


def action_between(shop: Shop, before: State, after: State) -> Action | None:
    """Return the one action that leads from a page to another, or None; ``opened`` is ignored."""
    goal = _bare(after)
    if before.kind is PageKind.SEARCH:
        return Action("search", after.query) if goal == State(PageKind.RESULTS, after.query) else None
    for text in admissible(shop, before):
        action = parse_action(text)
        if isinstance(action, Action):
            reached = advance(shop, before, action)
            if isinstance(reached, State) and _bare(reached) == goal:
                return action
    return None


def _bare(state: State) -> State:
    return replace(state, opened=frozenset())
