"""What the words of a trace mean: of Kineto since torch 1.8, and of our own traces.

What calls do, and what is device work, is `devices/kineto.py`'s.
"""

from __future__ import annotations

import re
from typing import Any

from gpumagic.devices import kineto
from gpumagic.report.events import SpanKind

KEYS = frozenset(
    {"distributedInfo", "deviceProperties", "baseTimeNanoseconds", "otherData"}
)

# By the category of an entry, in small letters: as Kineto spells it today, as it did
# before torch 1.13, and as our own traces have it.
WORK = {
    **kineto.DEVICE_WORK,
    "memcpy": SpanKind.COPY,
    "memset": SpanKind.FILL,
    "copy": SpanKind.COPY,
    "fill": SpanKind.FILL,
}
MTIA = "mtia_ccp_"
CALLS = frozenset({"runtime", "driver", "hip", "launch", "wait"})
# Of ours, by names that `kineto.kind_of_call` understands.
SIMULATED_CALLS = {"launch": "Launch {}", "wait": "{} (Synchronize)"}
OPERATORS = frozenset({kineto.OPERATION, "operator", "host"})
PYTHON = "python_function"
# Known, and nothing that anybody did: what a device was doing for an annotation, or was
# waiting for; what the profiler itself took; the time that it was on.
NO_ROWS = frozenset(
    {"gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", "trace"}
)
NO_SPANS = frozenset("MstfiIRCPbneNODSTpFvVca(),=")  # arrows, moments, counters, ...
# Traces without categories, of the profiler before Kineto, name their processes so.
BY_PROCESS = {
    "CPU functions": kineto.OPERATION,
    "CUDA functions": "kernel",
    "XPU functions": "kernel",
}
STEP = "ProfilerStep#"
COLLECTIVE = "record_param_comms"
# Before torch 1.11 marks were operators.
MARKED = (STEP, "Optimizer.", "enumerate(DataLoader)#")
MTIA_COPIES, MTIA_EVENTS = "dma", "event_"

_COMMUNICATES = re.compile(
    r"""^\W*(void\ +)?(nccl|rccl|hccl|hcom_|msccl|oneccl|ccl::|nvshmem|deep_ep::)
    | ^\W*(void\ +)?c10d::(?!checkForNaN)  # that one only looks at its own
    | nccl(Dev)?Kernel | mscclpp | oneapi::ccl
    | cross_device_reduce | multimem_ | (one|two)_shot_all_?reduce
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What the profiler calls the types of what is sent, and their bytes.
_BYTES = {
    "byte": 1,
    "char": 1,
    "bool": 1,
    "short": 2,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "float": 4,
    "long": 8,
    "double": 8,
    "complexfloat": 8,
    "complexdouble": 16,
}
_RANK = (
    re.compile(r"(?<![a-z])rank[-_= ]?(\d{1,6})(?![\d])", re.IGNORECASE),
    # Accelerate's ProfileKwargs, and Lightning's PyTorchProfiler.
    re.compile(r"^profile_(\d{1,6})\.json"),
    re.compile(r"^(?:fit|validate|test|predict)-.*?-(\d{1,6})\.\d{10,}\.pt\.trace\."),
)
_MOST_NUMBER = 2**62


def communicates(kernel: str) -> bool:
    """Whether a kernel is one by which ranks send each other something."""
    return _COMMUNICATES.search(kernel) is not None


def launches(call: str) -> bool:
    """Whether a call gives a device something to do."""
    return kineto.kind_of_call(call) is SpanKind.LAUNCH


def launches_a_graph(call: str) -> bool:
    """Whether a call launches all that a graph holds: all of it has its number."""
    return "GraphLaunch" in call


def whole(value: Any) -> int | None:
    """A number that can be a count; None for anything else."""
    if type(value) is int:
        return value if -_MOST_NUMBER < value < _MOST_NUMBER else None
    return None


def clean(text: Any) -> str:
    """A text that can be written; halves of characters cannot."""
    if not isinstance(text, str):
        raise TypeError
    return text.encode("utf-8", "replace").decode()


def sent_bytes(args: dict[str, Any]) -> int | None:
    """How much this rank put into what it did with others."""
    count, kind = args.get("In msg nelems"), args.get("dtype")
    if type(count) is not int or not isinstance(kind, str):
        return None
    size = _BYTES.get(kind.lower())
    return None if size is None else whole(count * size)


def of_all_ranks(values: dict[str, Any], key: str) -> int | None:
    """A number that the ranks know of each other."""
    told = values.get("distributedInfo")
    number = whole(told.get(key)) if isinstance(told, dict) else None
    return None if number is None or number < 0 else number


def rank_of(values: dict[str, Any], name: str) -> int | None:
    """The rank that the file tells, or its name."""
    told = of_all_ranks(values, "rank")
    if told is not None:
        return told
    found = (each.search(name) for each in _RANK)
    return next((int(each[1]) for each in found if each), None)


def device_names(values: dict[str, Any]) -> dict[int, str]:
    """What the devices of the machine are called, by their numbers."""
    told = values.get("deviceProperties")
    return {
        each["id"]: clean(each["name"])
        for each in (told if isinstance(told, list) else [])
        if isinstance(each, dict)
        and whole(each.get("id")) is not None
        and isinstance(each.get("name"), str)
    }


def is_simulated(values: dict[str, Any]) -> bool:
    """Whether it is a trace of the simulated GPU: `simulator/tracing.py` writes it."""
    told = values.get("otherData")
    return isinstance(told, dict) and isinstance(told.get("machine"), str)


def simulated_beginning(values: dict[str, Any]) -> int | None:
    """When it began, by the clock that all processes of a simulated machine have."""
    began_ns = whole(values["otherData"].get("began_ns"))
    return None if began_ns is None or began_ns < 0 else began_ns
