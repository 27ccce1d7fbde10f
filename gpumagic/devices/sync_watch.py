"""Which lines make the host wait for a CUDA device, noted while a block runs.

Two ways together see most of it. torch's sync debug mode warns of every operation
of torch that waits, after it has waited; the stack at that moment names the line.
It says nothing of `torch.cuda.synchronize()` and of events, which are asked for in
so many words; those few functions are wrapped, and so can be timed as well.

torch could also tell of those through `torch.cuda._gpu_trace`. But that slows down each
allocation and each event, can lose an error (`race_watch` says how), and cannot tell a
wait that was asked for from one that was not.
"""

# ruff: noqa: SLF001 -- the public functions end in private ones, which none can evade

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
import threading
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from gpumagic.devices.torch_private import replaced
from gpumagic.errors import DeviceError
from gpumagic.report.events import SyncCall
from gpumagic.report.places import Place, PlaceMark, Places, code_line, runs_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WARN, _ERROR = 1, 2  # torch's numbers for its modes
_PRINTING = "_tensor_str.py"  # where torch makes the text of a tensor
_ANYWAY = "leave --syncs off: the time itself does not need it"

_WAITED = "called a synchronizing CUDA operation"
_UNFINISHED = "Synchronization debug mode is a prototype"  # said once, by setting it
# Written so that it equals no filter of anybody else: that one would be replaced.
_OURS = f"(?:{_WAITED}|{_UNFINISHED})"
_UNKNOWN = "an operation that waits"
_SAYS_MORE = (  # than what was typed
    "printing",
    "indexing",
    "assignment",
    "copy from",
    "copy to the device",
    "freeing",
    "cudaFree",
    "stream.",
    "event.",
)
_CONDITION = "a tensor as a condition"
_CONDITIONAL = re.compile(r"(if|elif|while|assert)\b")
_WORDS: dict[type[ast.expr], str] = {
    ast.BoolOp: _CONDITION,
    ast.Compare: _CONDITION,
    ast.IfExp: _CONDITION,
    ast.UnaryOp: _CONDITION,
    ast.JoinedStr: "a tensor in a text",
    ast.Subscript: "indexing",
}
# What the machine sees where a value is wanted on the host, whoever has asked for it.
_FOR_A_VALUE = (".item()", "copy to the host")
_ASKS_FOR_A_VALUE = frozenset(
    {
        *_WORDS.values(),
        *(
            f"{name}()"
            for name in ("bool", "float", "int", "complex", "min", "max", "list")
        ),
        *(f".{name}()" for name in ("item", "tolist", "numpy", "cpu", "to")),
    }
)


@contextlib.contextmanager
def watch_syncs(torch: Any, kind: str) -> Iterator[list[SyncCall]]:
    """Note each call that makes the host wait, by the line of the user's own code.

    Not seen are waits in torch.distributed and torch.sparse, copies from pageable
    memory with `non_blocking=True`, waits of other libraries, of the generic
    `torch.Stream` and `torch.Event`, and whatever runs while the code itself silences
    or records warnings. Only explicit waits have a cost. No device is started, and
    where the mode is "error", so that waits raise, it stays so.
    """
    read, write = _mode_of(torch, kind)
    places = Places(tuple(map(str, getattr(torch, "__path__", ()))))
    waits: list[Callable[[], SyncCall]] = []

    def note(what: str, waited_s: float | None = None) -> None:
        if runs_through(_PRINTING):
            what = "printing a tensor"
        ended_ns = time.perf_counter_ns()
        marks = places.here(), places.caller()
        waits.append(functools.partial(_seen, what, *marks, waited_s, ended_ns))

    def warned() -> None:
        if not asked_for.now:  # else it is noted there, when it has ended
            note("")

    seen: list[SyncCall] = []
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: seen.extend(look() for look in waits))
        asked_for = undo.enter_context(_wrapped_syncs(torch, note))
        undo.enter_context(_taken_warnings(warned))
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
    try:  # the public words start CUDA
        return torch._C._cuda_get_sync_debug_mode, torch._C._cuda_set_sync_debug_mode
    except AttributeError:
        raise DeviceError(
            "this torch cannot tell which calls wait for the device: it was built "
            "without CUDA, or lacks the sync debug mode",
            _ANYWAY,
        ) from None


def _seen(
    what: str,
    mark: PlaceMark | None,
    caller: PlaceMark | None,
    waited_s: float | None,
    ended_ns: int,
) -> SyncCall:
    """A wait, by what was typed there where torch does not say what waited."""
    what = what or call_in_words(mark and Place(*mark).expression)
    return SyncCall(what, code_line(mark), waited_s, ended_ns, code_line(caller))


@contextlib.contextmanager
def _taken_warnings(waited: Callable[[], object]) -> Iterator[None]:
    """Call a function for each of torch's warnings that something has waited."""
    before = warnings.showwarning
    watching = True

    def show(message: Any, category: Any, *args: Any, **options: Any) -> None:
        text = str(message)
        if not watching or not text.startswith((_WAITED, _UNFINISHED)):
            before(message, category, *args, **options)
        elif text.startswith(_WAITED):
            waited()

    # "always": by default each line warns once only.
    warnings.filterwarnings("always", message=_OURS, category=UserWarning)
    filters = _filters()
    own = filters[0]
    warnings.showwarning = show
    try:
        yield
    finally:
        watching = False  # somebody may have kept it, as logging does
        if warnings.showwarning is show:
            warnings.showwarning = before
        for each in (filters, _filters()):
            _take_out(own, each)


def _take_out(own: Any, filters: list[Any]) -> None:
    filters[:] = [each for each in filters if each is not own]


def _filters() -> list[Any]:
    """The filters in force; since Python 3.14 they can be those of a context."""
    here: Callable[[], Any] = getattr(
        warnings, "_get_filters", lambda: warnings.filters
    )
    filters: list[Any] = here()
    return filters


class _AskedFor(threading.local):
    """Whether this thread is in a wait that was asked for."""

    now = False


@contextlib.contextmanager
def _wrapped_syncs(
    torch: Any, note: Callable[[str, float | None], None]
) -> Iterator[_AskedFor]:
    """Tell of each explicit wait in the block, with what it took on the host's clock.

    The device's wait is wrapped where it enters C++, so that it is also seen under a
    name that the user imported before. A wrapper that somebody keeps does nothing
    once the block has ended.
    """
    asked_for = _AskedFor()
    watching = True

    def wrap(what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def synchronize(*args: Any, **options: Any) -> Any:
            if asked_for.now or not watching:
                return original(*args, **options)
            asked_for.now = True
            began_ns = time.perf_counter_ns()
            try:
                return original(*args, **options)
            finally:
                waited_s = (time.perf_counter_ns() - began_ns) / 1e9
                asked_for.now = False
                if not _is_ours():
                    note(what, waited_s)

        return synchronize

    with contextlib.ExitStack() as undo:
        for owner, name, what in _known_to_wait(torch):
            undo.enter_context(replaced(owner, name, functools.partial(wrap, what)))
        try:
            yield asked_for
        finally:
            watching = False


def _is_ours() -> bool:
    """Whether a wait is asked for by our own code, as the prefetcher does."""
    callers = (
        str(frame.f_globals.get("__name__")).partition(".")[0]
        for frame, _ in traceback.walk_stack(sys._getframe(2))
    )
    asking = next((each for each in callers if each != "torch"), "")
    return asking == __name__.partition(".")[0]


def _known_to_wait(torch: Any) -> Iterator[tuple[Any, str, str]]:
    core = torch._C
    yield core, "_cuda_synchronize", "torch.cuda.synchronize()"
    yield core, "_accelerator_synchronizeDevice", "torch.accelerator.synchronize()"
    yield getattr(torch.cuda, "Stream", None), "synchronize", "stream.synchronize()"
    yield getattr(torch.cuda, "Event", None), "synchronize", "event.synchronize()"


def call_in_words(expression: str | None) -> str:
    """A short name for what waited: `.item()`, `torch.nonzero()`, `float()`."""
    typed = (expression or "").strip()
    if _CONDITIONAL.match(typed):
        return _CONDITION
    try:
        # In brackets, as it may go over several lines.
        tree = ast.parse(f"({typed}\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return _UNKNOWN
    if isinstance(tree, ast.Call):
        return _called(tree.func)
    return _WORDS.get(type(tree), _UNKNOWN)


def wait_in_words(seen: str, expression: str | None) -> str:
    """A short name for a wait of which the machine has seen something as well.

    >>> wait_in_words(".item()", "loss > 1"), wait_in_words(".item()", "step(x)")
    ('a tensor as a condition', 'step(): .item()')
    >>> wait_in_words("nonzero", "torch.nonzero(x)"), wait_in_words("nonzero", None)
    ('torch.nonzero()', 'nonzero')
    """
    typed = call_in_words(expression)
    if typed == _UNKNOWN or seen.startswith(_SAYS_MORE):
        return seen
    function = seen.strip(".()").rpartition(".")[2]
    same = typed.strip(".()").rpartition(".")[2] == function
    if same or (seen in _FOR_A_VALUE and typed in _ASKS_FOR_A_VALUE):
        return typed
    return f"{typed}: {seen}"


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return f"{function.id}()"
    if not isinstance(function, ast.Attribute):
        return _UNKNOWN
    name = ast.unparse(function)
    of_torch = name.startswith("torch.") and name.replace(".", "").isidentifier()
    return f"{name}()" if of_torch else f".{function.attr}()"
