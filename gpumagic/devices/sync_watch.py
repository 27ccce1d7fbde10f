"""Which lines make the host wait for a CUDA device, noted while a block runs.

Two ways together see most of it. torch's sync debug mode warns of every operation
of torch that waits, after it has waited; the stack at that moment names the line.
It says nothing of `torch.cuda.synchronize()` and of events, which are asked for in
so many words; those few functions are wrapped, and so can be timed as well.

torch could also tell of those through `torch.cuda._gpu_trace`. But that can never be
switched off again, from then on slows down each allocation and each event of the
process, and cannot tell a wait that was asked for from one that was not.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.explicit_syncs import wrapped_syncs
from gpumagic.devices.sync_warnings import taken_warnings
from gpumagic.devices.wait_words import call_in_words
from gpumagic.errors import DeviceError
from gpumagic.observed import SyncCall
from gpumagic.places import Place, PlaceMark, Places, code_line, runs_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WARN, _ERROR = 1, 2  # torch's numbers for its modes
_PRINTING = "_tensor_str.py"  # where torch makes the text of a tensor
_ANYWAY = "leave --syncs off: the time itself does not need it"


class _Wait(NamedTuple):
    """A wait that nobody has looked at yet; `what` is None where torch does not say."""

    what: str | None
    mark: PlaceMark | None
    waited_ns: int | None


@contextlib.contextmanager
def watch_syncs(torch: Any, kind: str) -> Iterator[list[SyncCall]]:
    """Note each call that makes the host wait, by the line of the user's own code.

    Seen are, in every thread, the operations that torch's sync debug mode knows, and
    explicit waits by `torch.cuda` and `torch.accelerator`. Not seen are waits in
    torch.distributed and torch.sparse, copies from pageable memory with
    `non_blocking=True`, waits of other libraries, of the generic `torch.Stream` and
    `torch.Event`, and whatever runs while the code itself silences or records
    warnings. Only explicit waits have a cost; torch tells no other.

    It starts no device. Where the mode is "error", so that waits raise, it stays so.

    Args:
        torch: The torch module itself.

        kind: The word in front of the colon of the devices.

    Yields:
        The calls, there as soon as the block has ended, however it ended.

    Raises:
        DeviceError: This kind of device has no such mode.
    """
    read, write = _mode_of(torch, kind)
    places = Places(tuple(map(str, getattr(torch, "__path__", ()))))
    waits: list[_Wait] = []

    def note(what: str | None, waited_ns: int | None = None) -> None:
        what = "printing a tensor" if runs_through(_PRINTING) else what
        waits.append(_Wait(what, places.here(), waited_ns))

    def warned() -> None:
        if not asked_for.now:  # else it is noted there, when it has ended
            note(None)

    seen: list[SyncCall] = []
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: seen.extend(map(_looked_at, waits)))
        asked_for = undo.enter_context(wrapped_syncs(torch, note))
        undo.enter_context(taken_warnings(warned))
        undo.enter_context(_warning_mode(read, write))
        yield seen


@contextlib.contextmanager
def _warning_mode(
    read: Callable[[], int], write: Callable[[int], object]
) -> Iterator[None]:
    before = read()
    if before == _ERROR:
        yield
        return
    write(_WARN)
    try:
        yield
    finally:
        if read() == _WARN:  # else the code has set a mode of its own
            write(before)


def _mode_of(
    torch: Any, kind: str
) -> tuple[Callable[[], int], Callable[[int], object]]:
    """How the sync debug mode is read and written without starting CUDA."""
    if kind != "cuda":
        raise DeviceError(
            f"torch cannot tell which calls wait for {kind}: it has a mode for that "
            f"on cuda only",
            _ANYWAY,
        )
    names = "_cuda_get_sync_debug_mode", "_cuda_set_sync_debug_mode"
    found = [getattr(torch._C, name, None) for name in names]  # noqa: SLF001
    if not all(found) and torch.cuda.is_initialized():
        # The public words start CUDA, which does no harm once it is started.
        found = [getattr(torch.cuda, name[len("_cuda_") :], None) for name in names]
    read, write = found
    if read is None or write is None:
        raise DeviceError(
            "this torch cannot tell which calls wait for the device: it was built "
            "without CUDA, or lacks the sync debug mode",
            _ANYWAY,
        )
    return read, write


def _looked_at(wait: _Wait) -> SyncCall:
    what = wait.what
    if what is None:
        expression = None if wait.mark is None else Place(*wait.mark).expression
        what = call_in_words(expression)
    waited_s = None if wait.waited_ns is None else wait.waited_ns / 1e9
    return SyncCall(what, code_line(wait.mark), waited_s)
