"""Missing waits between CUDA streams, found by torch's own sanitizer and collected.

torch's sanitizer (`torch.cuda._sanitizer`, private) prints the first race and raises.
Here a copy of it goes on, and hands over what it finds.

Once `torch.cuda._sanitizer` is loaded, it follows every allocation of the process for
good, each with its whole stack. So it is never loaded under its own name here, and
what the copy registers is taken back.

It hears of allocations and events by hooks that torch's C++ calls in Python. A tensor
that is freed while an error is on its way calls one, and the error is lost, by which
Python can crash. torch has no way to switch them off; here they are, after the block
and from an error to the next operation.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import DeviceError, first_line
from gpumagic.report.events import SeenRace
from gpumagic.report.places import PlaceMark, Places, code_line, place_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_INSTEAD = 'gpumagic.simulate("h100") finds races as well, with any torch it runs with'

# In the place of `traceback`, for a sanitizer that is asked for no stacks.
_NO_STACKS = SimpleNamespace(
    StackSummary=SimpleNamespace(extract=lambda *_, **__: []), walk_stack=id
)
_DEFAULT_STREAM = 0
_SANITIZER = "torch.cuda._sanitizer"
_HOOKS = "_ZN3c104impl8GPUTrace9haveStateE"  # whether C++ calls any
_HEARD = (
    *("event_creation", "event_deletion", "event_record", "event_wait"),
    *("memory_allocation", "memory_deallocation", "stream_creation"),
    *("device_synchronization", "stream_synchronization", "event_synchronization"),
)


class Access(NamedTuple):
    """One of the two accesses of a race."""

    stream: int  # the driver's handle of its stream; 0 is the default one
    verb: str  # what it does there: "reads", "writes"
    mark: PlaceMark | None  # where the user's code made it


@contextlib.contextmanager
def watch_races(torch: Any, kind: str) -> Iterator[list[SeenRace]]:
    """Collect the races of a block, each pair of places once; the block slows.

    What is followed are operations of torch, called by this thread or by autograd for
    it. Two accesses meet only where their tensors begin at the same address. Nothing is
    known of what ran before the block, nor of the operation that starts CUDA. After a
    race the later stream counts as if it had waited, so that one missing wait is not
    told many times.
    """
    if kind != "cuda":
        raise DeviceError(
            f"torch cannot find races between the streams of {kind}: its sanitizer "
            f"knows cuda only",
            _INSTEAD,
        )
    places = Places(tuple(map(str, getattr(torch, "__path__", ()))))
    found: list[SeenRace] = []
    told: set[tuple[PlaceMark | None, PlaceMark | None]] = set()

    def collect(earlier: Access, later: Access) -> None:
        places_of_both = earlier.mark, later.mark
        if places_of_both not in told:
            told.add(places_of_both)
            found.append(in_words(torch, earlier, later))

    with contextlib.ExitStack() as undo:
        try:
            hooks = undo.enter_context(_hooks_put_back(torch))
            sanitizer = undo.enter_context(private_sanitizer(torch))
            sanitizer.EventHandler = _collector(sanitizer, places, collect)
            mode = _following_mode(torch, sanitizer, hooks)
        except (ImportError, AttributeError, TypeError) as error:
            reason = f"torch's stream sanitizer cannot be used: {first_line(error)}"
            raise DeviceError(reason, _INSTEAD) from error
        hooks.value = True  # torch does that once only
        with mode:
            yield found


@contextlib.contextmanager
def _hooks_put_back(torch: Any) -> Iterator[Any]:
    """The switch of torch's hooks, which is as it was after the block."""
    import ctypes

    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        switch: Any = ctypes.c_bool.in_dll(library, _HOOKS)
    except (OSError, ValueError):  # another system: they stay on
        switch = SimpleNamespace(value=True)
    before = switch.value
    try:
        yield switch
    finally:
        switch.value = before


def _collector(
    sanitizer: Any, places: Places, collect: Callable[[Access, Access], None]
) -> type:
    """What the sanitizer puts its events into, which hands over what it finds."""

    class Collector(sanitizer.EventHandler):  # type: ignore[misc]
        """Finds what torch's own finds, and lets the code go on."""

        def __init__(self) -> None:
            super().__init__()
            self._marks: dict[int, PlaceMark | None] = {}

        def _handle_kernel_launch(self, *args: Any, **options: Any) -> list[Any]:
            errors = super()._handle_kernel_launch(*args, **options)
            self._marks[self.seq_num] = places.here()
            for error in errors:
                earlier, later = error.previous_access, error.current_access
                collect(self._seen(earlier), self._seen(later))
                self._as_if_waited(earlier.stream, later.stream)
            return []

        def _seen(self, access: Any) -> Access:
            writes = access.type is sanitizer.AccessType.WRITE
            verb = "writes" if writes else "reads"
            return Access(access.stream, verb, self._marks.get(access.seq_num))

        def _as_if_waited(self, earlier_stream: int, later_stream: int) -> None:
            event = -1  # no event of CUDA has such an address
            self._handle_event_creation(event)
            self._handle_event_record(event, earlier_stream)
            self._handle_event_wait(event, later_stream)
            self._handle_event_deletion(event)

    return Collector


def _following_mode(torch: Any, sanitizer: Any, hooks: Any) -> Any:
    """The sanitizer's dispatch mode, by which it sees operations."""

    class Mode(sanitizer.CUDASanitizerDispatchMode):  # type: ignore[misc]
        """Follows each operation, and does not start CUDA for it."""

        _kept: Any = None  # what was made last is not freed by an error of Python's

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            hooks.value, self._kept = True, None
            try:
                outputs = self._followed(func, types, args, kwargs)
            except BaseException:
                hooks.value = False
                raise
            # A gradient is taken over instead of copied only where nobody else has it.
            if torch._C._current_graph_task_id() == -1:  # noqa: SLF001 -- no other way
                self._kept = outputs
            return outputs

        def _followed(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            # It touches no memory; older sanitizers take it for a write.
            if func is torch.ops.aten.record_stream.default:
                return func(*args, **(kwargs or {}))
            follow = super().__torch_dispatch__
            if torch.cuda.is_initialized():
                return follow(func, types, args, kwargs)
            return func(*args, **(kwargs or {}))

    return Mode()


def in_words(torch: Any, earlier: Access, later: Access) -> SeenRace:
    """What is wrong, with both places, and what to type where."""
    later_place, earlier_place = place_text(later.mark), place_text(earlier.mark)
    waiting, other = (
        _named(torch, each, "torch.cuda.default_stream()", "<stream {:#x}>")
        for each in (later.stream, earlier.stream)
    )
    reading, writing = (
        _named(torch, each, "the default stream", "stream {:#x}")
        for each in (later.stream, earlier.stream)
    )
    return SeenRace(
        problem=(
            f"{later_place} {later.verb} memory on {reading} that {earlier_place} "
            f"{earlier.verb} on {writing}, and nothing makes it wait"
        ),
        hint=f"{waiting}.wait_stream({other}) before {later_place}",
        earlier=code_line(earlier.mark),
        later=code_line(later.mark),
    )


def _named(torch: Any, stream: int, default: str, unnamed: str) -> str:
    """A stream in words, or to be typed."""
    if stream == _DEFAULT_STREAM:
        return default
    return _variable_of(torch, stream) or unnamed.format(stream)


def _variable_of(torch: Any, stream: int) -> str | None:
    """The name that the user has given a stream, in the notebook or the script."""
    for name, value in vars(sys.modules["__main__"]).copy().items():
        # Nothing of the user's is run to find out: no property, no `__eq__`.
        bases = type.__getattribute__(type(value), "__mro__")
        a_stream = any(each is torch.cuda.Stream for each in bases)
        named = type(name) is str and not name.startswith("_")
        if named and a_stream and value.cuda_stream == stream:
            return name
    return None


@contextlib.contextmanager
def private_sanitizer(torch: Any) -> Iterator[Any]:
    """The sanitizer's module, loaded beside the one that the user may have.

    At the end torch's registries are rid of whatever the copy has put there.
    """
    gpu_trace = importlib.import_module("torch.cuda._gpu_trace")
    # Asked first: a copy that fails half-way leaves half a sanitizer.
    for name in _HEARD:
        getattr(gpu_trace, f"register_callback_for_{name}")
    torch._C._activate_gpu_trace  # noqa: B018, SLF001 -- as above
    spec = importlib.util.find_spec(_SANITIZER)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no {_SANITIZER}")
    module: Any = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        # It extracts the whole stack at each operation, for texts that nobody reads.
        module.traceback = _NO_STACKS
        yield module
    finally:
        for registry in vars(gpu_trace).values():
            callbacks = getattr(registry, "callback_list", [])
            callbacks[:] = (each for each in callbacks if not _is_of(module, each))


def _is_of(module: Any, callback: Any) -> bool:
    function = getattr(callback, "__func__", None)
    return getattr(function, "__globals__", None) is vars(module)
