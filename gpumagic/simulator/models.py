"""The GPUs that can be simulated: what is known of one, and finding it by name."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError, did_you_mean
from gpumagic.report.record import Record
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_GPUS = 16  # as many as the largest machine of one host has

# A type without units of its own is computed by the fp32 units. How much of their
# rate is left is known for bf16 on two cards only, and is guessed from those.
_EMULATED_EFFICIENCY = 0.5
_COUNT_FIRST = re.compile(r"(\d+)\s*x\s*(\S.*)", re.IGNORECASE)
_COUNT_LAST = re.compile(r"(\S.*?)\s*x\s*(\d+)", re.IGNORECASE)
_DECORATION = re.compile(r"[\s_-]+|nvidia|geforce")


@dataclass(frozen=True)
class Links(Record):
    """How fast bytes cross between a GPU and what is around it."""

    pinned_h2d_bytes_per_s: float
    pinned_d2h_bytes_per_s: float
    pageable_h2d_bytes_per_s: float
    pageable_d2h_bytes_per_s: float
    peer_bytes_per_s: float | None = None  # None: only by way of the host


@dataclass(frozen=True)
class GpuModel(Record):
    """All figures from which times and bytes of a simulated GPU are made.

    The mappings go by the words "fp64", "fp32", "tf32", "fp16", "bf16", "fp8" and
    "int8". A word without a peak is a type that the GPU has no units for.
    """

    key: str  # what the user types
    title: str  # what the user reads, behind the word "simulated"
    product: str  # what the driver calls the real one
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int  # all that the driver reports
    l2_bytes: int
    memory_bytes_per_s: float  # by the data sheet
    memory_efficiency: float  # the share of it that a long copy reaches
    peak_flops: Mapping[str, float] = field(hash=False)  # dense, by the data sheet
    compute_efficiency: Mapping[str, float] = field(hash=False)  # of a large matmul
    links: Links
    aliases: tuple[str, ...] = ()
    unified_memory: bool = False  # CPU and GPU share one memory
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def label(self) -> str:
        """The name under which it is shown wherever a real GPU could be meant."""
        return f"simulated {self.title}"

    @property
    def copied_bytes_per_s(self) -> float:
        """The bytes read plus written in a second by a long copy on the device."""
        return self.memory_bytes_per_s * self.memory_efficiency

    @property
    def clock_hz(self) -> float:
        """The clock of the multiprocessors with which they reach their fp32 peak."""
        wide = self.compute_capability >= (8, 6)
        lanes = self.multiprocessors * (128 if wide else 64)
        return self.peak_flops["fp32"] / (2 * lanes)  # a lane multiplies and adds

    def has_units_for(self, dtype: str) -> bool:
        """Whether the GPU computes this type without emulating it."""
        return dtype in self.peak_flops

    def matmul_flops_per_s(self, dtype: str) -> float:
        """The rate that a large matmul reaches, emulated if need be."""
        if dtype == "tf32" and not self.has_units_for("tf32"):
            dtype = "fp32"  # the permission to round has no effect
        peak = self.peak_flops.get(dtype, self.peak_flops["fp32"])
        return peak * self.compute_efficiency.get(dtype, _EMULATED_EFFICIENCY)

    def with_memory(self, memory_bytes: int) -> GpuModel:
        """The same GPU with another amount of memory."""
        asked = f"{bytes_text(memory_bytes)}, as asked for"
        return dataclasses.replace(
            self,
            memory_bytes=memory_bytes,
            sources={**self.sources, "memory_bytes": asked},
        )

    def names(self) -> Iterator[str]:
        """Every name that finds it."""
        yield from (self.key, *self.aliases, self.title, self.product)


def known_models() -> tuple[GpuModel, ...]:
    """Every GPU that can be simulated, in the order to be listed."""
    from gpumagic.simulator.catalogue import CATALOGUE

    return CATALOGUE


def find_model(name: str) -> GpuModel:
    """The model of this name, in any spelling of case, spaces and hyphens.

    Raises:
        GpuMagicError: No model has this name.
    """
    found = _known(name)
    if found is not None:
        return found
    models = known_models()
    listed = ", ".join(model.key for model in models)
    typable = [name for model in models for name in (model.key, *model.aliases)]
    raise GpuMagicError(
        f"no GPU named {name.strip()!r} can be simulated; there are {listed}",
        did_you_mean(name.strip().lower(), typable) or "write for example h100 or 2xt4",
    )


def parse_request(text: str) -> tuple[GpuModel, int]:
    """What "h100", "4xh100", "h100x4" or "2 x t4" asks for: a model and how many.

    Raises:
        GpuMagicError: The name is unknown, or the number is not from 1 to 16.
    """
    if not isinstance(text, str):
        raise GpuMagicError(
            f"{text!r} does not say which GPUs are to be simulated",
            'write how many and which: "2xh100", or "h100" for one',
        )
    name, count = _split(text.strip())
    model = find_model(name)
    if not 1 <= count <= MOST_GPUS:
        raise GpuMagicError(
            f"a simulated machine has 1 to {MOST_GPUS} GPUs, and {text.strip()!r}"
            f" asks for {count}",
            f"write for example 4x{model.key}",
        )
    return model, count


def _split(text: str) -> tuple[str, int]:
    # Names hold digits and an x of their own (rtx4090, "4090x2"), so a reading
    # counts only where what is left of it is a name.
    readings = [(text, 1)]
    if first := _COUNT_FIRST.fullmatch(text):
        readings.append((first[2], int(first[1])))
    if last := _COUNT_LAST.fullmatch(text):
        readings.append((last[1], int(last[2])))
    for name, count in readings:
        if _known(name) is not None:
            return name, count
    # Nothing is known: "2xh10O" has a count, and "rtx4091" has none.
    return next(reading for reading in readings[::-1] if reading[1] <= MOST_GPUS)


def _known(name: str) -> GpuModel | None:
    bare = _bare(name)
    for model in known_models():
        if any(_bare(each) == bare for each in model.names()):
            return model
    return None


def _bare(name: str) -> str:
    return _DECORATION.sub("", name.lower())
