"""The events of a trace in plain rows, which is all that the sums need of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumagic.gpu_open.trace_records import FileRead
    from gpumagic.report.events import SpanKind


class Work(NamedTuple):
    """What a device did."""

    name: str  # as the file has it
    kind: SpanKind  # kernel, copy or fill
    communicates: bool  # whether it is a kernel of NCCL, RCCL or the like
    start_ns: int  # by the clock of the file
    end_ns: int  # not before the start
    # which one, as the file numbers them; None where it does not tell
    device: int | None
    stream: int | None  # likewise
    # the place of the call that launched it in `TraceEvents.calls`; None where none
    # is known. All that a graph holds has the call that launched it.
    call: int | None = None
    # of what communicates, all that the file tells; None of the others
    args: Mapping[str, Any] | None = None


class HostEvent(NamedTuple):
    """What a thread of the host did; the first three are a row of a timeline."""

    start_ns: int
    end_ns: int
    name: str
    thread: Any  # as the file numbers or names them


@dataclass
class TraceEvents:
    """One file, each list in order of the beginnings, what lasts longer first."""

    file: FileRead
    work: list[Work] = field(default_factory=list)  # what devices did
    # calls of the runtime and the driver of the device
    calls: list[HostEvent] = field(default_factory=list)
    operators: list[HostEvent] = field(default_factory=list)  # of torch
    # what the user, or a library, has annotated; also steps
    marks: list[HostEvent] = field(default_factory=list)
    # the user's own functions, where the trace has stacks: names as the file has them,
    # such as `train.py(12): step`
    python: list[HostEvent] = field(default_factory=list)
    # the thread that steps are marked on, or that launched most
    main_thread: Any = None
    rank: int | None = None
    world_size: int | None = None
    # by device, where the file tells
    device_names: dict[int, str] = field(default_factory=dict)
    simulated: bool = False
    # whether the clock of the file counts from then; a simulated one counts from the
    # beginning of its machine, for all processes alike
    since_1970: bool = False
