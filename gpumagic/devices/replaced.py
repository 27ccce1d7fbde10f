"""Puts something round a function of somebody else's, for as long as a block lasts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def replaced(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Put what is made of a function in its place; nothing happens if there is none.

    Whoever replaces it in turn, and leaves it so, keeps what they have put there. A
    class that has inherited it has nothing of its own afterwards.
    """
    before = getattr(owner, name, None)
    if before is None:
        yield
        return
    own = vars(owner).get(name)
    ours = make(before)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if vars(owner).get(name) is ours:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
