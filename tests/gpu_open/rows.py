"""Rows of a trace, by hand: nanoseconds, one thread, one device, as far as not said."""

from __future__ import annotations

from gpumagic.gpu_open.host import is_users
from gpumagic.gpu_open.records import FileRead
from gpumagic.gpu_open.trace_file import HostEvent, TraceEvents, Work
from gpumagic.report.events import SpanKind

KERNEL, COPY, FILL = SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL
MAIN, AUTOGRAD, OTHER = 1, 2, 3
NODE = "autograd::engine::evaluate_function: "


def trace(work=(), calls=(), operators=(), marks=(), python=(), **more):
    """A trace of these events, in the order that reading gives them."""

    def in_order(events):
        return sorted(events, key=lambda each: (each.start_ns, -each.end_ns))

    python = [each for each in python if is_users(each.name)]
    file = FileRead("trace.json", 0, 0)
    lists = (in_order(work), calls, *map(in_order, (operators, marks, python)))
    return TraceEvents(file, *map(list, lists), **{"main_thread": MAIN, **more})


def kernel(start, end, stream=7, **more):
    """A kernel that computes."""
    return Work(
        "gemm", KERNEL, False, start, end, more.pop("device", 0), stream, **more
    )


def nccl(start, end, call=None, name="ncclKernel_SendRecv(x)", **args):
    """A kernel that communicates."""
    return Work(name, KERNEL, True, start, end, 0, 20, call, args)


def host(name, start, end, thread=MAIN):
    """Something that a thread of the host did."""
    return HostEvent(start, end, name, thread)


def ns(seconds):
    """Whole nanoseconds."""
    return round(seconds * 1e9)
