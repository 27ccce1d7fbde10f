"""What a call of a GPU's library does to the host, told from its name.

The names are those of CUDA and HIP, of their runtimes and their drivers, and those of
Level Zero (ze) and Unified Runtime (ur), by which XPUs are driven.
"""

from __future__ import annotations

import re

from gpumagic.observed import SpanKind

_WAITS = re.compile(
    r"""Synchronize
    | ^(cuda|hip)(Host)?Free(Host|Array)?(_v\d+)?$  # not FreeAsync
    | ^cuMemFree(Host)?(_v\d+)?$
    | ^(cuda|hip)Memcpy(?!.*Async)
    | ^cuMemcpy(?!.*Async)
    | ^urEventWait
    | ^urQueueFinish
    """,
    re.VERBOSE,
)
_LAUNCHES = re.compile(r"Launch|Enqueue|Memcpy|Memset")
_COPIES = re.compile(r"Memcpy")


def kind_of_call(name: str, *, copied: bool = False) -> SpanKind | None:
    """Whether a call waits or launches; None for one that does neither.

    Args:
        name: As the profiler gives it.

        copied: Whether a copy that it has launched was done when it returned. So it is
            with pageable memory, for which "asynchronous" is only a word.
    """
    if _WAITS.search(name):
        return SpanKind.WAIT
    if not _LAUNCHES.search(name):
        return None
    return SpanKind.WAIT if copied and _COPIES.search(name) else SpanKind.LAUNCH
