"""Copies from the host to a device, noted while a block runs, by the user's line.

torch sends every such copy through one operator, `aten::copy_`, whichever words led
there: `.to()`, `.cuda()`, `torch.tensor(..., device=...)`, `module.to()`, a container's
own `.to()`, an assignment to a slice, a gradient. The place in torch's dispatcher where
a kind of device could have a kernel of its own for it is empty; for the length of the
block there is one, which looks on and lets torch's general kernel copy.

That is exact: it stands below all wrappers, where the source is the tensor that is
really read and `non_blocking` is what has arrived. A copy that is noted takes some ten
microseconds longer, one within the device three, and nothing else takes longer at all;
modes of torch would make every operation longer, and miss copies that C++ makes.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import SIMULATED, required_box
from gpumagic.errors import DeviceError, first_line
from gpumagic.report.places import PlaceMark, Places

if TYPE_CHECKING:
    from collections.abc import Iterator

# By the kind of device, what torch's dispatcher calls the place for its kernels.
_KEYS = {"cuda": "CUDA", "xpu": "XPU"}

WITHOUT = "waits for data and the trace are told without it"
_OPERATOR = "copy_"
_GENERAL = "CompositeExplicitAutograd"  # the kernel of devices without their own


@contextlib.contextmanager
def copies_watched(torch: Any, kind: str) -> Iterator[list[SeenCopy]]:
    """Note each copy from the host to a device of this kind, in every thread.

    It starts no device, and may be entered before one has been started. Not seen are
    copies that other libraries make by themselves, and those within CUDA graphs.
    """
    if kind == SIMULATED:
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

    with watch_copies(required_box(), note):
        yield seen


class SeenCopy(NamedTuple):
    """A copy from the host to a device."""

    # where the user's code was; None where none of it was running
    mark: PlaceMark | None
    nbytes: int  # what went over, after a conversion on the host
    # whether that lay in pinned memory. A tensor whose elements do not lie together
    # goes through pageable memory, pinned or not.
    pinned: bool
    non_blocking: bool  # as it was asked for
    held_s: float  # how long the call took; on a simulated device, on its clock
    at_ns: int  # when it began, by `time.perf_counter_ns`


@contextlib.contextmanager
def watched_at(torch: Any, kind: str, key: str) -> Iterator[list[SeenCopy]]:
    """Note copies at one place of torch's dispatcher."""
    library = None
    try:
        kernel = _Kernel(torch, kind)
        kernel.try_out(key)
        library = torch.library.Library("aten", "IMPL")
        library.impl(_OPERATOR, kernel, key)
    except (AttributeError, RuntimeError, TypeError) as error:
        if library is not None:
            library._destroy()  # noqa: SLF001 -- the only way to take a kernel out
        reason = f"copies to {kind} cannot be seen by line: {first_line(error)}"
        raise DeviceError(reason, WITHOUT) from error
    try:
        yield kernel.seen
    finally:
        library._destroy()  # noqa: SLF001


class _Kernel:
    """Stands where a kernel of `copy_` could be, and notes what comes from the host."""

    def __init__(self, torch: Any, kind: str) -> None:
        self.seen: list[SeenCopy] = []
        # What the decorator of a library looks for in a function.
        self.__name__ = "copies_watched"
        self._torch = torch
        self._kind = kind
        self._call = torch.ops.aten.copy_.default._op_dk  # noqa: SLF001
        self._general = getattr(torch._C.DispatchKey, _GENERAL)  # noqa: SLF001
        self._places = Places(
            (*map(str, getattr(torch, "__path__", ())), _compiled_code())
        )
        self._copy = _Copy()

    def try_out(self, key: str) -> None:
        """Copy a number on the host in the way that is used for all copies."""
        taken = self._torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
        if taken(f"aten::{_OPERATOR}", key):
            raise RuntimeError("somebody watches them, or copies in another way")
        one, other = (self._torch.zeros(1, device="cpu") for _ in range(2))
        self._call(self._general, one, other, False)

    def __call__(self, target: Any, source: Any, *non_blocking: Any) -> Any:
        """What torch calls, leaving out what is as by default; answers with target."""
        # torch hands out a number of its own making as a number, without a device.
        where = getattr(getattr(source, "device", None), "type", "")
        if where != "cpu" or target.device.type != self._kind:
            return self._call(self._general, target, source, *non_blocking)
        copy = self._copy
        copy.nbytes, copy.pinned = _nbytes(source), source.is_pinned()
        if copy.under_way:
            # A conversion or a gathering came first, and this is what really goes over.
            return self._call(self._general, target, source, *non_blocking)
        mark, at_ns = self._places.here(2), time.perf_counter_ns()
        copy.under_way = True
        try:
            result = self._call(self._general, target, source, *non_blocking)
            held_s = (time.perf_counter_ns() - at_ns) / 1e9
        finally:
            copy.under_way = False
        if copy.nbytes:
            self.seen.append(
                SeenCopy(
                    mark, copy.nbytes, copy.pinned, any(non_blocking), held_s, at_ns
                )
            )
        return result


class _Copy(threading.local):
    """What this thread copies, as far as it is known: it may be made in two."""

    under_way = False
    nbytes = 0
    pinned = False


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _compiled_code() -> str:
    """Where torch.compile writes the code that it makes, which is nobody's own."""
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, ImportError, OSError):  # a container without a name for its user
        user = str(os.getuid()) if hasattr(os, "getuid") else ""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return folder or str(Path(tempfile.gettempdir()) / f"torchinductor_{user}")
