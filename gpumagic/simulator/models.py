"""The GPUs that can be simulated, each with the sources of its figures.

"Sheet" is a data sheet, not checked on hardware; "XLA" the folder of device
descriptions in openxla/xla, reported by the devices; other names are projects on
GitHub. Links: pinned 12.3, 25 and 57 GB/s over PCI Express 3, 4, 5 (gpu-benches,
nvbandwidth); pageable 7 and 6 GB/s on servers (WeatherGenerator, pytorch), uncertain
by 1.5 to the device and by 4 from it. Shares of int8 and fp64 are estimates throughout.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpumagic.errors import GpuMagicError, did_you_mean
from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_GPUS = 16  # as many as the largest machine of one host has

# A type without units of its own is computed by the fp32 units. How much of their
# rate is left is known for bf16 on two cards only, and is guessed from those.
_EMULATED_EFFICIENCY = 0.5
_COUNT_FIRST = re.compile(r"(\d+)\s*x\s*(\S.*)", re.IGNORECASE)
_DECORATION = re.compile(r"[\s_-]+|nvidia|geforce")


@dataclass(frozen=True)
class Links(Record):
    """How fast bytes cross between a GPU and what is around it."""

    pinned_h2d_bytes_per_s: float
    pinned_d2h_bytes_per_s: float
    pageable_h2d_bytes_per_s: float
    pageable_d2h_bytes_per_s: float
    peer_bytes_per_s: float = 0.0  # 0: only by way of the host


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
    # The share of it that a large matmul reaches while all multiprocessors have a tile.
    compute_efficiency: Mapping[str, float] = field(hash=False)
    links: Links
    aliases: tuple[str, ...] = ()

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
        return dataclasses.replace(self, memory_bytes=memory_bytes)


def find_model(name: str) -> GpuModel:
    """The model of this name, in any spelling of case, spaces and hyphens."""
    if found := _known(name):
        return found
    listed = ", ".join(model.key for model in CATALOGUE)
    typable = [name for model in CATALOGUE for name in (model.key, *model.aliases)]
    raise GpuMagicError(
        f"no GPU named {name.strip()!r} can be simulated; there are {listed}",
        did_you_mean(name.strip().lower(), typable) or "write for example h100 or 2xt4",
    )


def parse_request(text: str) -> tuple[GpuModel, int]:
    """What "h100", "4xh100" or "2 x t4" asks for: a model and how many."""
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
    for name, count in readings:
        if _known(name):
            return name, count
    # Nothing is known: "2xh10O" has a count, and "rtx4091" has none.
    return next(reading for reading in readings[::-1] if reading[1] <= MOST_GPUS)


def _known(name: str) -> GpuModel | None:
    def bare(name: str) -> str:
        return _DECORATION.sub("", name.lower())

    for model in CATALOGUE:
        names = model.key, *model.aliases, model.title, model.product
        if bare(name) in map(bare, names):
            return model
    return None


_MIB: Final = 1 << 20
_GB: Final = 1e9
_TYPES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")


def _links(h2d: float, d2h: float, peer: float) -> Links:
    """A link in GB/s; what is pageable goes at the pace of the host."""
    return Links(h2d * _GB, d2h * _GB, 7 * _GB, 6 * _GB, peer * _GB)


def _by_type(figures: str, unit: float = 1.0) -> Mapping[str, float]:
    """Figures in the order of `_TYPES`; "-" where there is none."""
    pairs = zip(_TYPES, figures.split(), strict=True)
    return {word: float(figure) * unit for word, figure in pairs if figure != "-"}


def _gpu(  # noqa: PLR0913, PLR0917 -- a row of the table
    names: str,
    title: str,
    product: str,
    chip: tuple[tuple[int, int], int, int, int],
    memory: tuple[float, float],
    tera: str,
    shares: str,
    links: Links,
) -> GpuModel:
    """One GPU; its memory as GB/s of the sheet, and the share that a copy reaches."""
    key, *aliases = names.split()
    return GpuModel(
        key, title, product, *chip, memory[0] * _GB, memory[1],
        _by_type(tera, 1e12), _by_type(shares), links, (*aliases,),
    )  # fmt: skip


_HOPPER: Final = "67 67 494.7 989.4 989.4 1978.9 1979"
_AMPERE: Final = "19.5 19.5 156 312 312 - 624"
_OF_AMPERE: Final = "0.90 0.95 0.80 0.84 0.84 - 0.84"
_NVLINK_3, _NVLINK_4 = _links(25.1, 26.0, 276), _links(57, 57, 378)

CATALOGUE: Final = (
    # Multiprocessors, cache, 3000 GB/s and 798 TFLOP/s in bf16 measured on an H100,
    # +-5 %; memory XLA; other shares torch matmuls (zzc0721), fp8 ml-engineering.
    _gpu(
        "h100 h100-sxm h100-sxm5 h100-80gb", "H100 SXM", "NVIDIA H100 80GB HBM3",
        ((9, 0), 132, 84_942_979_072, 50 * _MIB), (3352, 0.90),
        _HOPPER, "0.90 0.78 0.84 0.83 0.83 0.74 0.74", _NVLINK_4,
    ),
    # XLA; the share of memory gpu-benches, FluidX3D, device-benchmarks, of products
    # torch matmuls (zzc0721), both +-10 %; peer over PCIe 5 an estimate.
    _gpu(
        "h100-pcie", "H100 PCIe", "NVIDIA H100 PCIe",
        ((9, 0), 114, 84_942_979_072, 50 * _MIB), (2039, 0.86),
        "51 51.2 378 756 756 1513 1513", "0.90 0.72 0.64 0.64 0.64 0.57 0.57",
        _links(57, 57, 48),
    ),
    # Multiprocessors, cache, 4300 GB/s and 769-798 TFLOP/s in bf16 measured on an H200,
    # +-5 %; memory XLA and out-of-memory texts; tf32 as on the H100.
    _gpu(
        "h200 h200-sxm", "H200", "NVIDIA H200",
        ((9, 0), 132, 151_397_597_184, 60_000_000), (4800, 0.90),
        _HOPPER, "0.90 0.77 0.84 0.82 0.82 0.76 0.76", _NVLINK_4,
    ),
    # XLA; gpu-benches 1737-1894, FluidX3D 1565 GB/s; torch matmuls (zzc0721,
    # ml-engineering); peer 276 over NVLink (nvbandwidth); all +-5 %.
    _gpu(
        "a100 a100-80gb a100-sxm a100-sxm-80gb", "A100 80GB", "NVIDIA A100-SXM4-80GB",
        ((8, 0), 108, 85_100_068_864, 40 * _MIB), (2039, 0.85),
        _AMPERE, _OF_AMPERE, _NVLINK_3,
    ),
    # Memory bottlerocket; gpu-benches 1358-1539, FluidX3D 1300 GB/s; else as above.
    _gpu(
        "a100-40gb a100-sxm-40gb", "A100 40GB", "NVIDIA A100-SXM4-40GB",
        ((8, 0), 108, 42_298_834_944, 40 * _MIB), (1555, 0.85),
        _AMPERE, _OF_AMPERE, _NVLINK_3,
    ),
    # waredb; memory from out-of-memory texts; device-benchmarks 912, FluidX3D 860 GB/s;
    # torch matmuls (zzc0721), +-7 %: it clocks higher than the sheet; no peer access.
    _gpu(
        "rtx4090 4090 rtx-4090", "RTX 4090", "NVIDIA GeForce RTX 4090",
        ((8, 9), 128, 24_197 * _MIB, 72_000_000), (1008, 0.90),
        "1.3 82.6 82.6 165.2 165.2 330 660.6", "0.90 0.64 1.0 1.0 1.0 1.0 1.0",
        _links(25, 25, 0),
    ),
    # pcpartcomparison, evo2, fpsbench; device-benchmarks 235, FluidX3D 228 GB/s; torch
    # matmuls (zzc0721), +-25 %: power limits it, and the first second runs 1.25 x.
    _gpu(
        "l4", "L4", "NVIDIA L4",
        ((8, 9), 58, 22_559 * _MIB, 48_000_000), (300, 0.78),
        "0.47 30.3 60.6 121 121 242 242", "0.90 0.40 0.43 0.47 0.47 0.47 0.47",
        _links(25, 25, 24),
    ),
    # deviceQuery (chiemon); device-benchmarks 240, FluidX3D 207 GB/s; torch matmuls
    # (zzc0721, device-benchmarks), +-15 %; bf16 is emulated; peer an estimate.
    _gpu(
        "t4", "T4", "Tesla T4",
        ((7, 5), 40, 15_843_721_216, 4 * _MIB), (320, 0.72),
        "0.25 8.1 - 65 - - 130", "0.90 0.50 - 0.62 0.28 - 0.62",
        _links(12.3, 12.3, 10),
    ),
    # XLA; gpu-benches 788-897 GB/s; torch matmuls (zzc0721), DeepBench, +-12 %; bf16 is
    # emulated; int8 by four-way dot products; peer over two NVLinks an estimate.
    _gpu(
        "v100 v100-16gb v100-sxm v100-sxm2", "V100 SXM2", "Tesla V100-SXM2-16GB",
        ((7, 0), 80, 16_935_682_048, 6 * _MIB), (898, 0.85),
        "7.8 15.7 - 125 - - 62", "0.90 0.90 - 0.82 0.66 - 0.82",
        _links(12.35, 12.3, 47),
    ),
)  # fmt: skip
