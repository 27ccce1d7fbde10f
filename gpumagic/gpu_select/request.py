"""Reads what the user asks for: the words as they are typed, and what they mean."""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from gpumagic.errors import GpuMagicError, did_you_mean
from gpumagic.gpu_select.options import Options
from gpumagic.gpu_select.report import Action
from gpumagic.report.units import parse_bytes, parse_seconds

_NONE_SAID = Options()
_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_BETWEEN = re.compile(r"[\s,]+")
_QUOTES = "'\"`\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
_NUMBER = re.compile(r"[0-9]{1,6}")
_RANGE = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
_LONGEST_RANGE = 1024
_UUID = re.compile(r"(gpu-|mig-)([a-z0-9./_-]+)", re.IGNORECASE)
_PCI = re.compile(r"pci:([0-9a-f:.]+)", re.IGNORECASE)
_BARE_PCI = re.compile(
    r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE
)
_TORCH_NAME = re.compile(r"(?:torch\.)?cuda:?([0-9]*)", re.IGNORECASE)
_SO_FAR_EMPTY = ("gpu", "gpu-", "mig", "mig-", "pci", "pci:")


class Kind(enum.Enum):
    """What sort of choice is asked for."""

    NAMED = "named"
    NONE = "none"
    ALL = "all"
    FREE = "free"


@dataclass(frozen=True)
class Request:
    """A request that has been understood; the machine has not been asked yet."""

    kind: Kind  # what sort of choice it is
    # what is named, in order: "2", "GPU-1a2b", "MIG-...", "pci:3b:00.0"
    names: tuple[str, ...]
    text: str  # the request as one would type it again, options included
    count: int = 1  # of free ones, how many
    # the free memory that each must have; None without a limit
    min_free_bytes: int | None = None
    # the highest utilisation of each; None without a limit
    max_util_share: float | None = None
    model: str | None = None  # a part of the model's name; None for any model
    exclude: tuple[str, ...] = ()  # names of what is not to be taken
    mine_ok: bool = False  # whether what the user's own processes hold counts as free
    wait_s: float = 0.0  # how long to wait for free ones
    form: str | None = None  # "index" or "uuid"; None lets the machine decide
    dry_run: bool = False  # whether only to say what would be set
    # whether it is kept for after a restart; nothing is set before
    restarting: bool = False
    verify: bool = False  # whether a child process starts CUDA first
    force: bool = False  # whether to leave the limit that the process was started with

    @property
    def only_tried(self) -> Action | None:
        """What it is called where nothing is set now."""
        if self.restarting:
            return Action.RESTARTING
        return Action.DRY_RUN if self.dry_run else None


def read(what: object, options: Options = _NONE_SAID) -> Request:
    """Understand a request.

    >>> read("0-2").names, read([3, "GPU-1a2b"]).text
    (('0', '1', '2'), '3,GPU-1a2b')

    Args:
        what: Names, divided by commas or blanks, or one of "none", "all" and "free".

        options: What is said beside them.

    Raises:
        GpuMagicError: The words mean nothing, or contradict each other.
    """
    kind, names = meaning(what)
    left_out = _excluded(options.exclude)
    filters = _filters_typed(options, left_out)
    head = ",".join(names) if kind is Kind.NAMED else kind.value
    if filters and kind is not Kind.FREE:
        raise GpuMagicError(
            f"{filters[0].split()[0]} chooses among free GPUs, and {head} says which",
            f"type %gpu_select {head}, or %gpu_select free {' '.join(filters)}",
        )
    return Request(
        kind,
        names,
        " ".join([head, *filters]),
        count=_count(options.n),
        min_free_bytes=_size(options.min_free),
        max_util_share=_share(options.max_util),
        model=_model(options.name),
        exclude=left_out,
        mine_ok=options.mine_ok,
        wait_s=_seconds(options.wait),
        form=options.as_,
        dry_run=options.dry_run,
        verify=options.verify,
        force=options.force,
    )


# ---------------------------------------------------------------- options


def _filters_typed(options: Options, left_out: tuple[str, ...]) -> list[str]:
    """What chooses among free GPUs, as one would type it."""
    n, size = options.n, options.min_free
    util, name = options.max_util, options.name
    return [
        *([] if n is None else [f"-n {n}"]),
        *([] if size is None else [f"--min-free {_size_text(size)}"]),
        *([] if util is None else [f"--max-util {util:.15g}"]),
        *([] if name is None else [f"--name{_value_text(name)}"]),
        *([f"--exclude {','.join(left_out)}"] if left_out else []),
        *(["--mine-ok"] if options.mine_ok else []),
    ]


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


def _seconds(wait: str | float) -> float:
    return parse_seconds(wait) if isinstance(wait, str) else float(wait)


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


# ---------------------------------------------------------------- words

_KINDS = {"none": Kind.NONE, "all": Kind.ALL, "free": Kind.FREE, "auto": Kind.FREE}


def meaning(what: object) -> tuple[Kind, tuple[str, ...]]:
    """The sort of choice, and the names if there are any.

    >>> meaning("0-2")[1], meaning([3, "gpu-1a2b"])[1]
    (('0', '1', '2'), ('3', 'GPU-1a2b'))

    Raises:
        GpuMagicError: The words mean nothing, or contradict each other.
    """
    words = _words(what)
    if not words:
        raise _nothing_asked_for()
    kinds = [word.lower() for word in words if word.lower() in _KINDS]
    if not kinds:
        return Kind.NAMED, _names(words)
    if len(words) > 1:
        raise _mixture(kinds[0], words)
    return _KINDS[kinds[0]], ()


def _words(what: object) -> list[str]:
    """The words of a text, of a number, or of all that is in a list."""
    if what is None or isinstance(what, bool):
        raise _nothing_asked_for(what)
    if isinstance(what, str):
        bare = (piece.strip(_QUOTES) for piece in _BETWEEN.split(what))
        return [word for word in bare if word]
    if isinstance(what, Iterable):
        return [word for each in what for word in _words(each)]
    return [str(what)]


def _excluded(what: object) -> tuple[str, ...]:
    """The names of what is not to be taken; there may be none."""
    words = _words(what)
    if kinds := [word for word in words if word.lower() in _KINDS]:
        raise GpuMagicError(
            f"--exclude names GPUs, and {kinds[0]!r} is no name of one",
            "type --exclude 0, or --exclude 0,GPU-1a2b",
        )
    return _names(words)


def _nothing_asked_for(what: object = "") -> GpuMagicError:
    return GpuMagicError(
        f"{what!r} names no GPU" if what != "" else "no GPU is named",
        "type %gpu_select none to hide every GPU, or %gpu_select free to take one",
    )


def _mixture(kind: str, words: list[str]) -> GpuMagicError:
    others = [word for word in words if word.lower() != kind]
    if _KINDS[kind] is Kind.FREE and len(others) == 1 and _NUMBER.fullmatch(others[0]):
        hint = (
            f"type %gpu_select {kind} -n {others[0]} for that many free GPUs, or "
            f"%gpu_select {others[0]} for GPU {others[0]}"
        )
    else:
        hint = f"type %gpu_select {kind} alone, or the names without it"
    return GpuMagicError(f"{kind!r} cannot stand among other words", hint)


# ---------------------------------------------------------------- names


def _names(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for word in words for name in _names_in(word))


def _names_in(word: str) -> list[str]:
    """One name, or the numbers of a range."""
    if _NUMBER.fullmatch(word):
        return [str(int(word))]
    if match := _RANGE.fullmatch(word):
        return _range(word, int(match[1]), int(match[2]))
    if match := _UUID.fullmatch(word):
        return [match[1].upper() + match[2]]
    if match := _PCI.fullmatch(word):
        return [f"pci:{match[1].lower()}"]
    if _BARE_PCI.fullmatch(word):
        return [f"pci:{word.lower()}"]
    raise _not_understood(word)


def _range(word: str, first: int, last: int) -> list[str]:
    if last < first:
        raise GpuMagicError(
            f"the range {word} counts down",
            f"type {last}-{first}, or the numbers one by one in the order you want",
        )
    if last - first >= _LONGEST_RANGE:
        raise GpuMagicError(
            f"the range {word} is longer than any machine has GPUs",
            "type %gpu_select all for all that there are",
        )
    return [str(number) for number in range(first, last + 1)]


def _not_understood(word: str) -> GpuMagicError:
    if match := _TORCH_NAME.fullmatch(word):
        wanted = match[1] or "free"
        return GpuMagicError(
            f"{word!r} is a name inside of one process, which comes from this choice",
            "numbers mean the GPUs of the machine, as nvidia-smi shows them: "
            f"type %gpu_select {wanted}",
        )
    if re.fullmatch(r"-[0-9]+", word):
        return GpuMagicError(
            f"no GPU has the number {word}", "type %gpu_select none to hide every GPU"
        )
    if word.lower() in _SO_FAR_EMPTY:
        return GpuMagicError(
            f"{word!r} is only the beginning of a name",
            "type as much of it as tells GPUs apart, such as GPU-1a2b or pci:3b:00.0; "
            "nvidia-smi -L shows the UUIDs",
        )
    hint = did_you_mean(word.lower(), _KINDS)
    return GpuMagicError(
        f"{word!r} names no GPU",
        hint or "type a number, a UUID, pci:3b:00.0, none, all or free",
    )
