"""The items of an iterator, taken before they are asked for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


def looking_ahead(items: Iterator[T], ahead: int) -> Iterator[T]:
    """Hand out an iterator's items in order, each when some after it have been taken.

    An error that is met ahead is raised when the items before it have been handed
    out. An interrupt is not put off.

    Args:
        items: Where they come from. No more is taken from it after its end or an
            error.

        ahead: How many of the items after it are taken before one is handed out.
    """
    waiting: deque[T] = deque()
    failure: Exception | None = None
    more = True
    while True:
        while more and len(waiting) <= ahead:
            try:
                waiting.append(next(items))
            except StopIteration:
                more = False
            except Exception as error:  # noqa: BLE001 -- raised in its turn, below
                failure, more = error, False
        if not waiting:
            break
        # No name is given to it here: what it takes on the device is the caller's.
        yield waiting.popleft()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # else the error and this frame keep each other alive
