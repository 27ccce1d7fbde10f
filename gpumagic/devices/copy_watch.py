"""Copies from the host to a device, noted while a block runs, by the user's line."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from gpumagic.devices.copy_kernel import WITHOUT, SeenCopy, watched_at
from gpumagic.devices.simulated import SimulatedRuntime, simulated_box
from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.places import PlaceMark

__all__ = ["SeenCopy", "copies_watched"]

# By the kind of device, what torch's dispatcher calls the place for its kernels.
_KEYS = {"cuda": "CUDA", "xpu": "XPU"}


@contextlib.contextmanager
def copies_watched(torch: Any, kind: str) -> Iterator[list[SeenCopy]]:
    """Note each copy from the host to a device of this kind, in every thread.

    It starts no device, and may be entered before one has been started. Not seen are
    copies that other libraries make by themselves, and those within CUDA graphs.

    Args:
        torch: The torch module itself.

        kind: The word in front of the colon of the devices.

    Yields:
        The copies so far.

    Raises:
        DeviceError: Copies to this kind of device cannot be watched, or somebody
            watches them already.
    """
    if kind == SimulatedRuntime.kind:
        watched = _on_the_simulator()
    else:
        if kind not in _KEYS:
            raise DeviceError(f"copies to {kind} cannot be seen by line", WITHOUT)
        watched = watched_at(torch, kind, _KEYS[kind])
    with watched as seen:
        yield seen


@contextlib.contextmanager
def _on_the_simulator() -> Iterator[list[SeenCopy]]:
    """The simulator tells by itself; its place in the dispatcher is taken."""
    from gpumagic.simulator.observing import watch_copies

    box = simulated_box()
    if box is None:
        raise DeviceError(
            "the simulated GPU was switched off",
            'gpumagic.simulate("h100") switches one on',
        )
    seen: list[SeenCopy] = []

    def note(
        mark: PlaceMark | None,
        nbytes: int,
        held_ns: int,
        *,
        pinned: bool,
        non_blocking: bool,
    ) -> None:
        at_ns = time.perf_counter_ns()
        seen.append(SeenCopy(mark, nbytes, pinned, non_blocking, held_ns / 1e9, at_ns))

    with watch_copies(box, note):
        yield seen
