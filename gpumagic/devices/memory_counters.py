"""The caching allocator's counters, read in tens of microseconds, and who resets them.

torch's flat form of them is made anew each time, of 122 keys in sorted order, which
takes longer than all else around a cell. The nested form is what it is made of.

torch keeps one peak and one sum for everybody. After a reset they begin anew, and once
they have passed their old values nothing tells of it any more. So the few functions
that all of torch's own words for it end in are seen for as long as somebody reads.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from gpumagic.devices.protocols import Runtime

# torch accepts either name, whatever it is built for, and any value.
_WITHOUT_CACHE = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
_CUDA = "cuda"

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


def allocator_figures(runtime: Runtime, device: int) -> Mapping[str, Any] | None:
    """All that the allocator of a device in use counts, nested or under flat keys."""
    module = getattr(loaded_torch(), runtime.kind, None)
    nested: Any = getattr(module, "memory_stats_as_nested_dict", lambda _: {})
    try:
        # Empty before the start, and where a stand-in has the place of the device.
        return nested(device) or runtime.memory_stats(device)
    except RuntimeError:  # an allocator that was plugged in need not count
        return None


def figure(figures: Mapping[str, Any], key: str) -> int | None:
    """One of these figures by torch's flat key; None if it is not counted."""
    found: Any = figures.get(key)
    if found is None and "." in key:
        found = figures
        for part in key.split("."):
            found = found.get(part) if hasattr(found, "get") else None
    return found if isinstance(found, int) else None


def allocator_backend(kind: str) -> str | None:
    """Which allocator torch uses; None where there is no choice, or no torch."""
    try:
        return str(getattr(loaded_torch(), kind).get_allocator_backend())
    except AttributeError:  # also where this torch is built without such devices
        return None


def caching_is_off(kind: str) -> bool:
    """Whether memory is taken from the driver directly, so that nothing is counted."""
    if kind != _CUDA:
        return False
    core = getattr(loaded_torch(), "_C", None)
    if ask := getattr(core, "_cuda_cudaCachingAllocator_is_enabled", None):
        return not ask()
    return any(name in os.environ for name in _WITHOUT_CACHE)


if TYPE_CHECKING:
    Around = Callable[[], AbstractContextManager[object]]


@contextlib.contextmanager
def watch_resets(around: Around) -> Iterator[bool]:
    """Put something round each reset during a block; nothing is started by it."""
    core, box = getattr(loaded_torch(), "_C", None), simulated_box()
    with contextlib.ExitStack() as undo:
        for name in _RESETS:
            undo.enter_context(_read(core, name, around))
        if box and box.is_on:
            undo.enter_context(box.watch_resets(around))
        yield bool(core)


@contextlib.contextmanager
def _read(owner: Any, name: str, around: Around) -> Iterator[None]:
    """Be one of the readers of one function; nothing happens if there is none."""
    seen: Any = getattr(owner, name, None)
    if not seen:
        yield
        return
    if not hasattr(seen, _READERS):
        seen = _seen(seen)
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
