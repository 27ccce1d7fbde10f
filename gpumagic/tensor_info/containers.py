"""What lies in lists, tuples and dicts; no code of a subclass is run."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gpumagic.report.introspection import is_truly, spelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOKED_AT_MOST = 10_000
_KINDS: tuple[type, ...] = (dict, list, tuple)


def kind_of_container(thing: Any) -> str:
    """The word for it: "dict", "list" or "tuple"; empty for all else."""
    return next((kind.__name__ for kind in _KINDS if is_truly(thing, kind)), "")


def items_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Each item, by the place behind a name that leads to it: `[0]`, `['w']`."""
    if is_truly(thing, dict):
        # A list of the pairs: the dict may change while they are looked at.
        for key, value in list(dict.items(thing)):
            yield f"[{spelled(key)}]", value
        return
    for number, value in enumerate(_in_order(thing)):
        yield f"[{number}]", value


def place_within(
    container: Any, wanted: Callable[[Any], bool]
) -> tuple[str | None, bool]:
    """The nearest item that is wanted, on any level.

    Args:
        container: Where to look; it may contain itself.

        wanted: Whether an item is one.

    Returns:
        The place of it, such as `[0]['w']`; None where none was found. And whether
        all was looked at until then: a search ends after 10,000 items.
    """
    seen = {id(container)}
    waiting = deque([("", container)])
    left = _LOOKED_AT_MOST
    while waiting:
        place, outer = waiting.popleft()
        for part, item in items_of(outer):
            if wanted(item):
                return place + part, True
            left -= 1
            if not left:
                return None, False
            if id(item) not in seen and kind_of_container(item):
                seen.add(id(item))
                waiting.append((place + part, item))
    return None, True


def _in_order(thing: Any) -> Iterator[Any]:
    if is_truly(thing, list):
        return list.__iter__(thing)
    return tuple.__iter__(thing) if is_truly(thing, tuple) else iter(())
