"""The functions of torch that wait because somebody says so, wrapped and timed."""

# ruff: noqa: SLF001 -- the public functions end in private ones, which none can evade

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class AskedFor(threading.local):
    """Whether this thread is in a wait that was asked for.

    Attributes:
        now: Whether it is.
    """

    now = False


@contextlib.contextmanager
def wrapped_syncs(
    torch: Any, note: Callable[[str, int | None], None]
) -> Iterator[AskedFor]:
    """Tell of each explicit wait in the block, with what it took on the host's clock.

    The device's wait is wrapped where it enters C++, so that it is also seen under a
    name that the user imported before. A wrapper that somebody keeps does nothing
    once the block has ended.

    Args:
        torch: The torch module itself.

        note: Is given what was called, and the nanoseconds, at the end of each wait.
    """
    asked_for = AskedFor()
    watching = True

    def wrap(original: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def synchronize(*args: Any, **options: Any) -> Any:
            if asked_for.now or not watching:
                return original(*args, **options)
            asked_for.now = True
            began_ns = time.perf_counter_ns()
            try:
                return original(*args, **options)
            finally:
                waited_ns = time.perf_counter_ns() - began_ns
                asked_for.now = False
                note(what, waited_ns)

        return synchronize

    with contextlib.ExitStack() as undo:
        for owner, name, what in _those_that_wait(torch):
            _put(undo, owner, name, wrap(getattr(owner, name), what))
        try:
            yield asked_for
        finally:
            watching = False


def _those_that_wait(torch: Any) -> Iterator[tuple[Any, str, str]]:
    """Of the functions that wait those that this torch has."""
    for owner, name, what in _known_to_wait(torch):
        if getattr(owner, name, None) is not None:
            yield owner, name, what


def _known_to_wait(torch: Any) -> Iterator[tuple[Any, str, str]]:
    yield torch._C, "_cuda_synchronize", "torch.cuda.synchronize()"
    yield (
        torch._C,
        "_accelerator_synchronizeDevice",
        "torch.accelerator.synchronize()",
    )
    yield getattr(torch.cuda, "Stream", None), "synchronize", "stream.synchronize()"
    yield getattr(torch.cuda, "Event", None), "synchronize", "event.synchronize()"


def _put(
    undo: contextlib.ExitStack, owner: Any, name: str, wrapper: Callable[..., Any]
) -> None:
    """Replace a function until the end, unless somebody else replaces it by then."""
    inherited = name not in vars(owner)
    original = None if inherited else vars(owner)[name]

    def put_back() -> None:
        if vars(owner).get(name) is not wrapper:
            return
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    setattr(owner, name, wrapper)
    undo.callback(put_back)
