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
NO_LIMIT_BYTES = (1 << 64) - 1  # as torch has it, where nobody has set one

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the first goes first
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
_PAIR = re.compile(r"(\w+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,+|$)")


@dataclass(frozen=True)
class AllocatorSettings:
    """How a caching allocator rounds, splits and keeps memory."""

    # blocks of this size and above are handed out whole
    max_split_size_bytes: int = NO_LIMIT_BYTES
    # steps between two powers of two; 0 or 1 rounds to 512 bytes
    roundup_power2_divisions: int = 0
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
        variable = next(filter(os.environ.get, _VARIABLES), "")
        try:
            return cls.parse(os.environ.get(variable, ""))
        except GpuMagicError as error:
            raise GpuMagicError(
                f"{error.problem}; {variable} asks for it",
                f'gpumagic.simulate(..., allocator="") leaves it aside; or %env '
                f"{variable}=",
            ) from None

    def rounded_bytes(self, nbytes: int) -> int:
        """The size of the block that serves a request of at least one byte."""
        divisions = self.roundup_power2_divisions
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


# What is modelled: the field that holds it, what reads it, whether that may be, and
# what it has to be.
_MODELLED: dict[str, tuple[str, Callable[[str], Any], Callable[[Any], bool], str]] = {
    "max_split_size_mb": (
        "max_split_size_bytes",
        lambda value: int(value) * MIB,
        lambda limit: limit >= LARGE_SEGMENT_BYTES,
        "a whole number from 20 on",
    ),
    "garbage_collection_threshold": (
        "garbage_collection_threshold",
        float,
        lambda share: 0 < share < 1,
        "a number between 0 and 1",
    ),
    "roundup_power2_divisions": (
        "roundup_power2_divisions",
        int,
        lambda number: number > 0 and number.bit_count() == 1,
        "a power of two",
    ),
    "expandable_segments": (
        "expandable_segments",
        lambda value: bool(("False", "True").index(value)),
        lambda _: True,
        "True or False",
    ),
}


def _setting(key: str, value: str) -> dict[str, Any]:
    """What one pair changes, as a field of the settings."""
    known = (*_MODELLED, *_UNMODELLED, *_WITHOUT_EFFECT)
    if key not in known:
        raise GpuMagicError(
            f"torch's allocator has no setting {key!r}",
            did_you_mean(key, known) or _EXAMPLE,
        )
    if _UNMODELLED.get(key, value) != value or "[" in value:
        raise GpuMagicError(
            f"the simulated GPU does not model {key}:{value}",
            f"leave {key} out of PYTORCH_ALLOC_CONF",
        )
    if key not in _MODELLED:
        return {}
    name, read, may_be, wanted = _MODELLED[key]
    try:
        found = read(value)
        if may_be(found):
            return {name: found}
    except ValueError:
        pass
    raise GpuMagicError(f"{key} is {value!r}, which is not {wanted}", _EXAMPLE)


def _pairs(text: str) -> list[tuple[str, str]]:
    """Each key with its value; commas inside of brackets belong to the value."""
    plain = "".join(str(text).split()).lstrip(",")
    found = list(_PAIR.finditer(plain))
    if "".join(each[0] for each in found) != plain:
        raise GpuMagicError(f"{text!r} is not a list of key:value pairs", _EXAMPLE)
    return [(each[1], each[2]) for each in found]
