"""What the user asks for: the words as they are typed, and what they mean."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.words import Kind, excluded, meaning
from gpumagic.report.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Kind", "Request", "read"]


@dataclass(frozen=True)
class Request:
    """A request that has been understood; the machine has not been asked yet.

    Attributes:
        kind: What sort of choice it is.

        names: What is named, in order: "2", "GPU-1a2b", "MIG-...", "pci:3b:00.0".

        text: The request as one would type it again, options included.

        count: Of free ones, how many.

        min_free_bytes: The free memory that each must have; None without a limit.

        max_util_share: The highest utilisation of each; None without a limit.

        model: A part of the model's name; None for any model.

        exclude: Names of what is not to be taken.

        mine_ok: Whether what the user's own processes hold counts as free.
    """

    kind: Kind
    names: tuple[str, ...]
    text: str
    count: int = 1
    min_free_bytes: int | None = None
    max_util_share: float | None = None
    model: str | None = None
    exclude: tuple[str, ...] = ()
    mine_ok: bool = False


def read(  # noqa: PLR0913 -- each one is an option of the magic
    what: str | int | Iterable[str | int],
    *,
    n: int | None = None,
    min_free: str | int | None = None,
    max_util: float | None = None,
    name: str | None = None,
    exclude: str | int | Iterable[str | int] = (),
    mine_ok: bool = False,
) -> Request:
    """Understand a request.

    >>> read("0-2").names, read([3, "GPU-1a2b"]).text
    (('0', '1', '2'), '3,GPU-1a2b')

    Args:
        what: Names, divided by commas or blanks, or one of "none", "all" and "free".

        n: Of free ones, how many; one if not said.

        min_free: The free memory that each must have: bytes, or text as "20GiB".

        max_util: The highest utilisation of each, in percent.

        name: A part of the model's name.

        exclude: What is not to be taken, by name.

        mine_ok: Whether what the user's own processes hold counts as free.

    Raises:
        GpuMagicError: The words mean nothing, or contradict each other.
    """
    kind, names = meaning(what)
    left_out = excluded(exclude)
    options = [
        *([] if n is None else [f"-n {n}"]),
        *([] if min_free is None else [f"--min-free {_size_text(min_free)}"]),
        *([] if max_util is None else [f"--max-util {max_util:.15g}"]),
        *([] if name is None else [f"--name{_value_text(name)}"]),
        *([f"--exclude {','.join(left_out)}"] if left_out else []),
        *(["--mine-ok"] if mine_ok else []),
    ]
    head = ",".join(names) if kind is Kind.NAMED else kind.value
    if options and kind is not Kind.FREE:
        raise GpuMagicError(
            f"{options[0].split()[0]} chooses among free GPUs, and {head} says which",
            f"type %gpu_select {head}, or %gpu_select free {' '.join(options)}",
        )
    return Request(
        kind,
        names,
        " ".join([head, *options]),
        count=_count(n),
        min_free_bytes=_size(min_free),
        max_util_share=_share(max_util),
        model=_model(name),
        exclude=left_out,
        mine_ok=mine_ok,
    )


# ---------------------------------------------------------------- options

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def _count(n: int | None) -> int:
    if n is None:
        return 1
    if n < 1:
        raise GpuMagicError(
            f"-n {n} asks for no GPU", "type %gpu_select none to hide every GPU"
        )
    return n


def _size(size: str | int | None) -> int | None:
    if size is None or isinstance(size, str):
        return None if size is None else parse_bytes(size)
    if size < 0:
        raise GpuMagicError(
            f"--min-free {size} is less than nothing", "type --min-free 20GiB"
        )
    return size


def _size_text(size: str | int) -> str:
    """As one word, and without rounding, so that it means the same again."""
    if isinstance(size, str):
        return re.sub(r"\s", "", size)
    for unit, unit_bytes in _UNITS:
        if size >= unit_bytes and size % unit_bytes == 0:
            return f"{size // unit_bytes}{unit}"
    return f"{size}B" if size else "0"


def _value_text(value: str) -> str:
    """A value behind its option; one that looks like an option is tied to it."""
    return f"{'=' if value.startswith('-') else ' '}{shlex.quote(value)}"


def _share(percent: float | None) -> float | None:
    if percent is None:
        return None
    if not 0 <= percent <= 100:
        raise GpuMagicError(
            f"--max-util {percent:g} is no percentage",
            "type a number from 0 to 100, such as --max-util 30",
        )
    return percent / 100


def _model(name: str | None) -> str | None:
    if name is not None and not name.strip():
        raise GpuMagicError(
            "--name is empty", "type a part of the model's name: --name A100"
        )
    return name
