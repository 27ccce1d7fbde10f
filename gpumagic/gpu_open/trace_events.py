"""The events of a trace in plain rows, which is all that the sums need of them.

A trace has some hundred thousand events; as rows they take a tenth of the memory that
the file's own dictionaries take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumagic.gpu_open.trace_records import FileRead
    from gpumagic.report.events import SpanKind


class Work(NamedTuple):
    """What a device did.

    Attributes:
        name: As the file has it.

        kind: Kernel, copy or fill.

        communicates: Whether it is a kernel of NCCL, RCCL or the like.

        start_ns: By the clock of the file.

        end_ns: Not before the start.

        device: Which one, as the file numbers them; None where it does not tell.

        stream: Likewise.

        nbytes: How much was copied or sent, where the file tells.

        call: The place of the call that launched it in `TraceEvents.calls`; None where
            none is known. All that a graph holds has the call that launched it.

        args: Of what communicates, all that the file tells; None of the others.
    """

    name: str
    kind: SpanKind
    communicates: bool
    start_ns: int
    end_ns: int
    device: int | None
    stream: int | None
    nbytes: int | None = None
    call: int | None = None
    args: Mapping[str, Any] | None = None


class HostEvent(NamedTuple):
    """What a thread of the host did.

    Attributes:
        thread: As the file numbers them.

        sequence: The number by which forward and backward of autograd find each other.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int
    sequence: int | None = None


@dataclass
class TraceEvents:
    """One file, each list in order of the beginnings, what lasts longer first.

    Attributes:
        work: What devices did.

        calls: Calls of the runtime and the driver of the device.

        operators: Of torch.

        marks: What the user, or a library, has annotated; also steps.

        python: Functions, where the trace has stacks: names as the file has them, such
            as `train.py(12): step`.

        main_thread: The thread that steps are marked on, or that launched most.

        device_names: By device, where the file tells.

        since_1970: Whether the clock of the file counts from then; a simulated one
            counts from the beginning of its machine, for all processes alike.
    """

    file: FileRead
    work: list[Work] = field(default_factory=list)
    calls: list[HostEvent] = field(default_factory=list)
    operators: list[HostEvent] = field(default_factory=list)
    marks: list[HostEvent] = field(default_factory=list)
    python: list[HostEvent] = field(default_factory=list)
    main_thread: int | None = None
    rank: int | None = None
    world_size: int | None = None
    device_names: dict[int, str] = field(default_factory=dict)
    simulated: bool = False
    since_1970: bool = False
