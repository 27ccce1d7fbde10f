"""The answers as plain functions, for scripts and for those without magics."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpumagic.devices.driver import open_driver
from gpumagic.devices.opening import runtime_now
from gpumagic.gpu_mem.known_names import KnownNames
from gpumagic.gpu_mem.memory import Memory
from gpumagic.gpu_mem.one_cell import OneCell
from gpumagic.report.events import Code
from gpumagic.report.frontend import running_shell
from gpumagic.report.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.gpu_mem.records.names import Holdings
    from gpumagic.gpu_mem.report import CellReport, FitReport, MapReport, MemoryReport


class Measured:
    """What a `with` block came to.

    Attributes:
        report: None until the block has ended.
    """

    def __init__(self) -> None:
        self.report: CellReport | None = None


def snapshot(
    namespace: Mapping[str, Any] | None = None, *, top: int = 10
) -> MemoryReport:
    """How things stand now, and the names that hold most.

    Args:
        namespace: The names to look for; by default those of the main module.

        top: How many of them are to be shown.
    """
    return _memory(namespace).snapshot(top=top)


def holders(namespace: Mapping[str, Any] | None = None) -> Holdings:
    """Who holds the memory of the best device, or of the host where there is none.

    The local variables of functions that run have no name here: what they alone hold
    is unattributed. `holders({**globals(), **locals()})` names those of one function.

    Args:
        namespace: The names to look for; by default those of the main module.
    """
    memory, runtime = _memory(namespace), runtime_now()
    return memory.holdings(runtime, memory.devices(runtime))


def memory_map(namespace: Mapping[str, Any] | None = None) -> MapReport:
    """Every segment and block of the caching allocator.

    Args:
        namespace: The names to put on blocks; by default those of the main module.
    """
    return _memory(namespace).map()


def fit(size: int | str) -> FitReport:
    """Whether so many bytes would fit now, on each device in use.

    Args:
        size: Bytes, or text such as "6GiB".
    """
    nbytes = parse_bytes(size) if isinstance(size, str) else size
    return _memory(None).fit(nbytes)


@contextmanager
def measure(
    name: str = "with block",
    *,
    namespace: Mapping[str, Any] | None = None,
    exact: bool = False,
    lines: bool = False,
    top: int = 10,
) -> Iterator[Measured]:
    """Look at memory round a `with` block; its report is there when it has ended.

        with gpumagic.gpu_mem.measure() as measured:
            loss = model(batch).sum()
        print(measured.report)

    Args:
        name: What the report calls the block.

        namespace: The names to look for; by default those of the main module.

        exact: Whether the peak is wanted exactly, for which each allocation is seen.

        lines: Whether each line's part is wanted.

        top: How many names are to be shown.
    """
    measured, code = Measured(), Code(name)
    watch = OneCell(_names(namespace), exact=exact, lines=lines)
    watch.begin()
    try:
        yield measured
    except BaseException as error:
        watch.end(error=error)
        measured.report = watch.report(code, top=top, error=error)
        raise
    watch.end()
    measured.report = watch.report(code, top=top)


def _names(namespace: Mapping[str, Any] | None) -> KnownNames:
    own = vars(sys.modules["__main__"]) if namespace is None else namespace
    return KnownNames(own, running_shell())


def _memory(namespace: Mapping[str, Any] | None) -> Memory:
    return Memory(_names(namespace), open_driver)
