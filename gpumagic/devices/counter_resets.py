"""Notices who resets the counters of torch's allocators, while somebody reads them.

torch keeps one peak and one sum for everybody. After a reset they begin anew, and once
they have passed their old values nothing tells of it any more. So the few functions
that all of torch's own words for it end in are seen for as long as somebody reads.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from gpumagic.devices.imported import loaded_torch
from gpumagic.devices.simulated import simulated_box

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Around = Callable[[], AbstractContextManager[object]]

# Of torch._C. Python's functions look them up there at each call, however they were
# imported themselves; that another extension resets from C++ is not seen.
_RESETS = (
    "_accelerator_resetPeakStats",
    "_accelerator_resetAccumulatedStats",
    "_cuda_resetPeakMemoryStats",
    "_cuda_resetAccumulatedMemoryStats",
    "_xpu_resetPeakMemoryStats",
    "_xpu_resetAccumulatedMemoryStats",
    "_mtia_resetPeakMemoryStats",
)
_READERS = "gpumagic_readers"  # on what is put in: what its readers put round it


@contextlib.contextmanager
def watch_resets(around: Around) -> Iterator[bool]:
    """Put something round each reset during a block; nothing is started by it.

    Blocks may overlap in any way. Once the last has ended everything is as before.

    Args:
        around: Makes the context that a reset runs in; it must not raise.

    Yields:
        Whether they are seen: not those of a torch that is imported later.
    """
    torch, box = loaded_torch(), simulated_box()
    with contextlib.ExitStack() as undo:
        if torch is not None:
            for name in _RESETS:
                undo.enter_context(_read(torch._C, name, around))  # noqa: SLF001
        if box is not None and box.is_on:
            undo.enter_context(box.watch_resets(around))
        yield torch is not None


@contextlib.contextmanager
def _read(owner: Any, name: str, around: Around) -> Iterator[None]:
    """Be one of the readers of one function; nothing happens if there is none."""
    now: Any = getattr(owner, name, None)
    if now is None:
        yield
        return
    seen = now if hasattr(now, _READERS) else _seen(now)
    readers: list[Around] = getattr(seen, _READERS)
    readers.append(around)
    setattr(owner, name, seen)
    try:
        yield
    finally:
        readers.remove(around)
        if not readers and getattr(owner, name, None) is seen:
            setattr(owner, name, vars(seen)["__wrapped__"])


def _seen(reset: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with what its readers put round it."""

    @functools.wraps(reset)
    def seen_reset(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        with contextlib.ExitStack() as undo:
            for around in tuple(getattr(seen_reset, _READERS)):
                undo.enter_context(around())
            return reset(*args, **options)

    setattr(seen_reset, _READERS, [])
    return seen_reset
