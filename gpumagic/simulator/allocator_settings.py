"""The settings that torch reads from PYTORCH_ALLOC_CONF, and the sizes they decide."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20

SMALLEST_BLOCK_BYTES = 512  # the unit in which all blocks are measured
LARGEST_SMALL_BYTES = MIB  # what is larger comes from the large pool
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB  # for a large request that gets none of its own
SEGMENT_STEP_BYTES = 2 * MIB  # large segments of their own are rounded up to this
OWN_SEGMENT_BYTES = 10 * MIB  # from here on a request gets a segment of its own size

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the first goes first
_INTERVALS = 16  # sizes by power of two: up to 2 MiB, up to 4 MiB, ... and above
_EXAMPLE = "write for example max_split_size_mb:200,garbage_collection_threshold:0.8"

# What torch knows besides: with the only value that is modelled, ...
_UNMODELLED = {
    "backend": "native",
    "large_segment_size_mb": "20",
    "max_non_split_rounding_mb": "20",
    "per_process_memory_fraction": "1.0",
    "throw_on_cudamalloc_oom": "False",
}
# ... and what changes nothing here.
_WITHOUT_EFFECT = (
    "graph_capture_record_stream_reuse", "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb", "pinned_use_background_threads",
    "pinned_use_cuda_host_register", "release_lock_on_cudamalloc",
)  # fmt: skip
_PAIR = re.compile(r"(\w+|>):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,+|$)")


@dataclass(frozen=True)
class AllocatorSettings:
    """How a caching allocator rounds, splits and keeps memory."""

    # blocks of this size and above are handed out whole; `None` is no limit
    max_split_size_bytes: int | None = None
    # steps between two powers of two, one entry for each power from 1 MiB on; 0 or 1
    # rounds to 512 bytes
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    # share of the allowed memory above which unused segments are returned; 0 is never
    garbage_collection_threshold: float = 0.0
    # whether new memory is mapped page by page behind what is there, instead of in
    # segments
    expandable_segments: bool = False
    text: str = field(default="", compare=False)  # as it was written

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """The settings that a value of PYTORCH_ALLOC_CONF asks for."""
        settings = cls(text=text)
        for key, value in _pairs(text):
            settings = replace(settings, **_setting(key, value))
        return settings

    @classmethod
    def asked_for(cls, text: str | None) -> AllocatorSettings:
        """What a text says; without one, the environment, as torch reads it."""
        if text is not None:
            return cls.parse(text)
        variable = next(filter(os.environ.get, _VARIABLES), None)
        if variable is None:
            return cls()
        try:
            return cls.parse(os.environ[variable])
        except GpuMagicError as error:
            raise GpuMagicError(
                f"{error.problem}; {variable} asks for it",
                f'gpumagic.simulate(..., allocator="") leaves it aside; or %env '
                f"{variable}=",
            ) from None

    @property
    def rounds_to_divisions(self) -> bool:
        """Whether any request is rounded to more than the next 512 bytes."""
        return any(each > 1 for each in self.roundup_power2_divisions)

    def rounded_bytes(self, nbytes: int) -> int:
        """The size of the block that serves a request of at least one byte."""
        interval = min(max(nbytes.bit_length() - MIB.bit_length(), 0), _INTERVALS - 1)
        divisions = self.roundup_power2_divisions[interval]
        step = SMALLEST_BLOCK_BYTES
        if divisions > 1 and nbytes > SMALLEST_BLOCK_BYTES * divisions:
            step = (1 << (nbytes.bit_length() - 1)) // divisions
        return -(-nbytes // step) * step

    def segment_bytes(self, block_bytes: int) -> int:
        """What is asked of the driver for a block of this rounded size."""
        if block_bytes <= LARGEST_SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < OWN_SEGMENT_BYTES:
            return LARGE_SEGMENT_BYTES
        return -(-block_bytes // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES


def _setting(key: str, value: str) -> dict[str, Any]:
    """What one pair changes, as a field of the settings."""
    known = (*_MODELLED, *_UNMODELLED, *_WITHOUT_EFFECT)
    if key not in known:
        raise GpuMagicError(
            f"torch's allocator has no setting {key!r}",
            did_you_mean(key, known) or _EXAMPLE,
        )
    if _UNMODELLED.get(key, value) != value:
        raise GpuMagicError(
            f"the simulated GPU does not model {key}:{value}",
            f"leave {key} out of PYTORCH_ALLOC_CONF",
        )
    if key not in _MODELLED:
        return {}
    name, read, wanted = _MODELLED[key]
    try:
        return {name: read(value)}
    except ValueError:
        raise GpuMagicError(
            f"{key} is {value!r}, which is not {wanted}", _EXAMPLE
        ) from None


def _pairs(text: str) -> list[tuple[str, str]]:
    """Each key with its value; commas inside of brackets belong to the value."""
    plain = "".join(text.split()).lstrip(",")
    found = list(_PAIR.finditer(plain))
    if "".join(each[0] for each in found) != plain:
        raise GpuMagicError(f"{text!r} is not a list of key:value pairs", _EXAMPLE)
    return [(each[1], each[2]) for each in found]


def _split_limit(value: str) -> int:
    if int(value) < LARGE_SEGMENT_BYTES // MIB:
        raise ValueError
    return int(value) * MIB


def _share(value: str) -> float:
    if not 0 < float(value) < 1:
        raise ValueError
    return float(value)


def _power_of_two(value: str) -> int:
    if int(value) < 1 or int(value).bit_count() != 1:
        raise ValueError
    return int(value)


def _divisions(value: str) -> tuple[int, ...]:
    """One number for all sizes, or `[256:1,512:2,>:8]` with sizes in MiB."""
    if not value.startswith("["):
        return (_power_of_two(value),) * _INTERVALS
    divisions, last, first = [0] * _INTERVALS, 0, True
    for size, number_text in _pairs(value[1:-1]):
        number = 0 if number_text == "0" else _power_of_two(number_text)
        if size == ">":
            divisions[last:] = [number] * (_INTERVALS - last)
            continue
        last = min(_power_of_two(size).bit_length() - 1, _INTERVALS - 1)
        start = 0 if first else last  # the first entry also holds for smaller sizes
        divisions[start : last + 1] = [number] * (last + 1 - start)
        first = False
    return tuple(divisions)


# What is modelled: the field that holds it, what reads it, and what it has to be.
_MODELLED: dict[str, tuple[str, Callable[[str], object], str]] = {
    "max_split_size_mb": (
        "max_split_size_bytes", _split_limit, "a whole number from 20 on"
    ),
    "garbage_collection_threshold": (
        "garbage_collection_threshold", _share, "a number between 0 and 1"
    ),
    "roundup_power2_divisions": (
        "roundup_power2_divisions", _divisions, "made of powers of two"
    ),
    "expandable_segments": (
        "expandable_segments",
        lambda value: bool(("False", "True").index(value)),
        "True or False",
    ),
}  # fmt: skip
