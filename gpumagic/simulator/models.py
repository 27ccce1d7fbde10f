"""The GPUs that can be simulated: what is known of each, and how surely.

Sources are named as projects on GitHub, data sheets ("data sheet": not checked on
hardware) or "estimate" where there is no direct evidence. "XLA" is the folder of
device descriptions in openxla/xla, whose values were reported by the devices.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

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
_NODES_FIRST = re.compile(r"(\d+)\s*x\s*(\d+\s*x\s*\S.*)", re.IGNORECASE)
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
    # The share of it that a large matmul reaches while all multiprocessors have a tile.
    compute_efficiency: Mapping[str, float] = field(hash=False)
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
    return CATALOGUE


def find_model(name: str) -> GpuModel:
    """The model of this name, in any spelling of case, spaces and hyphens."""
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


def parse_nodes(text: str) -> tuple[int, str]:
    """How many nodes "2x8xh100" asks for, and what each of them has: "8xh100"."""
    found = _NODES_FIRST.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or _known(_split(found[2])[0]) is None:
        return 1, text
    nodes = int(found[1])
    if nodes < 1:
        raise GpuMagicError(
            f"{text.strip()!r} asks for no node at all", f"write {found[2]} for one"
        )
    return nodes, found[2]


def parse_request(text: str) -> tuple[GpuModel, int]:
    """What "h100", "4xh100", "h100x4" or "2 x t4" asks for: a model and how many."""
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


_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_GB: Final = 1e9
_TERA: Final = 1e12

_SHEET: Final = "data sheet, dense"
_PAGEABLE: Final = (
    "pageable 7 and 6 GB/s on servers (WeatherGenerator, pytorch), uncertain x1.5 to"
    " the device and x4 from it"
)
_PCIE_3: Final = f"pinned 12.3 (gpu-benches, FlexGen); {_PAGEABLE}"
_PCIE_4: Final = f"pinned 25 (nvbandwidth, A100); {_PAGEABLE}"
_PCIE_5: Final = f"pinned 57 by copy engine (nvbandwidth); {_PAGEABLE}"
_NVLINK_4: Final = f"{_PCIE_5}; peer 378 one way (nccl)"


def _links(h2d: float, d2h: float, peer: float | None) -> Links:
    """A link in GB/s; what is pageable goes at the pace of the host."""
    between = peer * _GB if peer is not None else None
    return Links(h2d * _GB, d2h * _GB, 7 * _GB, 6 * _GB, between)


def _tera(**per_type: float) -> Mapping[str, float]:
    return {word: figure * _TERA for word, figure in per_type.items()}


def _shares(**per_type: float) -> Mapping[str, float]:
    return per_type


_HOPPER_PEAKS: Final = _tera(
    fp64=67, fp32=67, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9, int8=1979
)
_AMPERE_PEAKS: Final = _tera(
    fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312, int8=624
)
_AMPERE_EFFICIENCY: Final = _shares(
    fp64=0.90, fp32=0.95, tf32=0.80, fp16=0.84, bf16=0.84, int8=0.84
)
_AMPERE_SOURCES: Final = {
    "multiprocessors": "XLA",
    "l2_bytes": "XLA",
    "peak_flops": _SHEET,
    "compute_efficiency": "torch matmuls (zzc0721, ml-engineering), +-5 %; tf32, fp64"
    " and int8 are estimates",
    "links": f"{_PCIE_4}; peer 276 over NVLink (nvbandwidth)",
}

CATALOGUE: Final = (
    GpuModel(
        key="h100",
        title="H100 SXM",
        product="NVIDIA H100 80GB HBM3",
        aliases=("h100-sxm", "h100-sxm5", "h100-80gb"),
        compute_capability=(9, 0),
        multiprocessors=132,
        memory_bytes=84_942_979_072,
        l2_bytes=50 * _MIB,
        memory_bytes_per_s=3352 * _GB,
        memory_efficiency=0.90,
        peak_flops=_HOPPER_PEAKS,
        compute_efficiency=_shares(
            fp64=0.90, fp32=0.78, tf32=0.84, fp16=0.83, bf16=0.83, fp8=0.74, int8=0.74
        ),
        links=_links(57, 57, 378),
        sources={
            "multiprocessors": "measured on an H100; XLA",
            "memory_bytes": "XLA",
            "l2_bytes": "measured on an H100; XLA",
            "memory_bytes_per_s": "XLA",
            "memory_efficiency": "3000 GB/s measured on an H100, +-5 %",
            "peak_flops": _SHEET,
            "compute_efficiency": "torch matmuls (zzc0721), 798 TFLOP/s in bf16"
            " measured on an H100, +-5 %; fp8 ml-engineering; fp64, int8 estimates",
            "links": _NVLINK_4,
        },
    ),
    GpuModel(
        key="h100-pcie",
        title="H100 PCIe",
        product="NVIDIA H100 PCIe",
        compute_capability=(9, 0),
        multiprocessors=114,
        memory_bytes=84_942_979_072,
        l2_bytes=50 * _MIB,
        memory_bytes_per_s=2039 * _GB,
        memory_efficiency=0.86,
        peak_flops=_tera(
            fp64=51, fp32=51.2, tf32=378, fp16=756, bf16=756, fp8=1513, int8=1513
        ),
        compute_efficiency=_shares(
            fp64=0.90, fp32=0.72, tf32=0.64, fp16=0.64, bf16=0.64, fp8=0.57, int8=0.57
        ),
        links=_links(57, 57, 48),
        sources={
            "multiprocessors": "XLA",
            "memory_bytes": "XLA",
            "l2_bytes": "XLA",
            "memory_bytes_per_s": "XLA, the card with HBM2e",
            "memory_efficiency": "gpu-benches, FluidX3D, device-benchmarks, +-10 %",
            "peak_flops": _SHEET,
            "compute_efficiency": "torch matmuls (zzc0721), +-10 % by power; fp8,"
            " int8 scaled from the H100 SXM, fp64 an estimate",
            "links": f"{_PCIE_5}; peer over PCIe 5 an estimate",
        },
    ),
    GpuModel(
        key="h200",
        title="H200",
        product="NVIDIA H200",
        aliases=("h200-sxm",),
        compute_capability=(9, 0),
        multiprocessors=132,
        memory_bytes=151_397_597_184,
        l2_bytes=60_000_000,
        memory_bytes_per_s=4800 * _GB,
        memory_efficiency=0.90,
        peak_flops=_HOPPER_PEAKS,
        compute_efficiency=_shares(
            fp64=0.90, fp32=0.77, tf32=0.84, fp16=0.82, bf16=0.82, fp8=0.76, int8=0.76
        ),
        links=_links(57, 57, 378),
        sources={
            "multiprocessors": "measured on an H200",
            "memory_bytes": "XLA; out-of-memory texts say about 139.8 GiB",
            "l2_bytes": "measured on an H200; XLA says 50 MiB",
            "memory_bytes_per_s": "XLA",
            "memory_efficiency": "4300 GB/s measured on an H200, +-5 %",
            "peak_flops": _SHEET,
            "compute_efficiency": "torch matmuls (zzc0721) and 769-798 TFLOP/s in bf16"
            " measured on an H200, +-5 %; fp8 ml-engineering; tf32 as on the H100;"
            " fp64, int8 estimates",
            "links": _NVLINK_4,
        },
    ),
    GpuModel(
        key="a100",
        title="A100 80GB",
        product="NVIDIA A100-SXM4-80GB",
        aliases=("a100-80gb", "a100-sxm", "a100-sxm-80gb"),
        compute_capability=(8, 0),
        multiprocessors=108,
        memory_bytes=85_100_068_864,
        l2_bytes=40 * _MIB,
        memory_bytes_per_s=2039 * _GB,
        memory_efficiency=0.85,
        peak_flops=_AMPERE_PEAKS,
        compute_efficiency=_AMPERE_EFFICIENCY,
        links=_links(25.1, 26.0, 276),
        sources={
            **_AMPERE_SOURCES,
            "memory_bytes": "XLA",
            "memory_bytes_per_s": "XLA",
            "memory_efficiency": "gpu-benches 1737-1894, FluidX3D 1565 GB/s, +-5 %",
        },
    ),
    GpuModel(
        key="a100-40gb",
        title="A100 40GB",
        product="NVIDIA A100-SXM4-40GB",
        aliases=("a100-sxm-40gb",),
        compute_capability=(8, 0),
        multiprocessors=108,
        memory_bytes=42_298_834_944,
        l2_bytes=40 * _MIB,
        memory_bytes_per_s=1555 * _GB,
        memory_efficiency=0.85,
        peak_flops=_AMPERE_PEAKS,
        compute_efficiency=_AMPERE_EFFICIENCY,
        links=_links(25.1, 26.0, 276),
        sources={
            **_AMPERE_SOURCES,
            "memory_bytes": "bottlerocket",
            "memory_bytes_per_s": "data sheet",
            "memory_efficiency": "gpu-benches 1358-1539, FluidX3D 1300 GB/s, +-5 %",
        },
    ),
    GpuModel(
        key="rtx4090",
        title="RTX 4090",
        product="NVIDIA GeForce RTX 4090",
        aliases=("4090", "rtx-4090"),
        compute_capability=(8, 9),
        multiprocessors=128,
        memory_bytes=24_197 * _MIB,
        l2_bytes=72_000_000,
        memory_bytes_per_s=1008 * _GB,
        memory_efficiency=0.90,
        peak_flops=_tera(
            fp64=1.3, fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330, int8=660.6
        ),
        compute_efficiency=_shares(
            fp64=0.90, fp32=0.64, tf32=1.0, fp16=1.0, bf16=1.0, fp8=1.0, int8=1.0
        ),
        links=_links(25, 25, None),
        sources={
            "multiprocessors": "waredb",
            "memory_bytes": "23.61-23.65 GiB in out-of-memory texts (VGen, flux-webui)",
            "l2_bytes": "waredb",
            "memory_bytes_per_s": "waredb",
            "memory_efficiency": "device-benchmarks 912, FluidX3D 860 GB/s, +-7 %",
            "peak_flops": f"{_SHEET}; fp8 is twice that with the short accumulator",
            "compute_efficiency": "torch matmuls (zzc0721), +-7 %: it clocks higher"
            " than the data sheet says; fp8, int8, fp64 estimates",
            "links": f"pinned 24-26 (nvbandwidth); {_PAGEABLE}, 9 on one desktop; the"
            " maker allows no peer access",
        },
    ),
    GpuModel(
        key="l4",
        title="L4",
        product="NVIDIA L4",
        compute_capability=(8, 9),
        multiprocessors=58,
        memory_bytes=22_559 * _MIB,
        l2_bytes=48_000_000,
        memory_bytes_per_s=300 * _GB,
        memory_efficiency=0.78,
        peak_flops=_tera(
            fp64=0.47, fp32=30.3, tf32=60.6, fp16=121, bf16=121, fp8=242, int8=242
        ),
        compute_efficiency=_shares(
            fp64=0.90, fp32=0.40, tf32=0.43, fp16=0.47, bf16=0.47, fp8=0.47, int8=0.47
        ),
        links=_links(25, 25, 24),
        sources={
            "multiprocessors": "pcpartcomparison; 60 elsewhere is the full chip",
            "memory_bytes": "22.03 GiB (evo2)",
            "l2_bytes": "fpsbench",
            "memory_bytes_per_s": "fpsbench",
            "memory_efficiency": "device-benchmarks 235, FluidX3D 228 GB/s, +-10 %",
            "peak_flops": _SHEET,
            "compute_efficiency": "torch matmuls (zzc0721), +-25 %: power limits it,"
            " and the first second runs 1.25 x faster; fp8, int8, fp64 estimates",
            "links": f"{_PCIE_4}; peer over PCIe 4 22-26 (nvbandwidth)",
        },
    ),
    GpuModel(
        key="t4",
        title="T4",
        product="Tesla T4",
        compute_capability=(7, 5),
        multiprocessors=40,
        memory_bytes=15_843_721_216,
        l2_bytes=4 * _MIB,
        memory_bytes_per_s=320 * _GB,
        memory_efficiency=0.72,
        peak_flops=_tera(fp64=0.25, fp32=8.1, fp16=65, int8=130),
        compute_efficiency=_shares(
            fp64=0.90, fp32=0.50, fp16=0.62, bf16=0.28, int8=0.62
        ),
        links=_links(12.3, 12.3, 10),
        sources={
            "multiprocessors": "deviceQuery (chiemon)",
            "memory_bytes": "deviceQuery (chiemon)",
            "l2_bytes": "deviceQuery (chiemon)",
            "memory_bytes_per_s": "deviceQuery (chiemon): 5001 MHz at 256 bit",
            "memory_efficiency": "device-benchmarks 240, FluidX3D 207 GB/s, +-15 %",
            "peak_flops": _SHEET,
            "compute_efficiency": "torch matmuls (zzc0721, device-benchmarks), +-15 %;"
            " bf16 is emulated at 2.0-2.5 TFLOP/s; int8, fp64 estimates",
            "links": f"{_PCIE_3}; peer over PCIe 3 an estimate",
        },
    ),
    GpuModel(
        key="v100",
        title="V100 SXM2",
        product="Tesla V100-SXM2-16GB",
        aliases=("v100-16gb", "v100-sxm", "v100-sxm2"),
        compute_capability=(7, 0),
        multiprocessors=80,
        memory_bytes=16_935_682_048,
        l2_bytes=6 * _MIB,
        memory_bytes_per_s=898 * _GB,
        memory_efficiency=0.85,
        peak_flops=_tera(fp64=7.8, fp32=15.7, fp16=125, int8=62),
        compute_efficiency=_shares(
            fp64=0.90, fp32=0.90, fp16=0.82, bf16=0.66, int8=0.82
        ),
        links=_links(12.35, 12.3, 47),
        sources={
            "multiprocessors": "XLA",
            "memory_bytes": "XLA",
            "l2_bytes": "XLA",
            "memory_bytes_per_s": "XLA",
            "memory_efficiency": "gpu-benches 788-897 GB/s, +-12 %",
            "peak_flops": f"{_SHEET}; int8 by four-way dot products",
            "compute_efficiency": "torch matmuls (zzc0721), DeepBench, +-12 %; bf16 is"
            " emulated at 10.3 TFLOP/s; int8, fp64 estimates",
            "links": f"{_PCIE_3}; peer over two NVLinks an estimate",
        },
    ),
    GpuModel(
        key="jetson",
        title="Jetson AGX Orin",
        product="Orin",
        aliases=("orin", "agx-orin", "jetson-agx-orin", "jetson-orin"),
        compute_capability=(8, 7),
        multiprocessors=16,
        memory_bytes=61 * _GIB,
        l2_bytes=4 * _MIB,
        memory_bytes_per_s=204.8 * _GB,
        memory_efficiency=0.80,
        peak_flops=_tera(fp64=0.08, fp32=5.3, tf32=21, fp16=42.6, bf16=42.6, int8=85),
        compute_efficiency=_shares(
            fp64=0.90, fp32=0.63, tf32=0.59, fp16=0.63, bf16=0.63, int8=0.63
        ),
        links=Links(82 * _GB, 82 * _GB, 82 * _GB, 82 * _GB),
        unified_memory=True,
        sources={
            "multiprocessors": "tensorrt-insight",
            "memory_bytes": "estimate: what the system leaves of 64 GB",
            "l2_bytes": "tensorrt-insight",
            "memory_bytes_per_s": "data sheet",
            "memory_efficiency": "estimate, x1.5",
            "peak_flops": "fp32 from the technical brief; int8 half of the sparse"
            " figure; the others are estimates",
            "compute_efficiency": "scaled from an Orin Nano, x1.5",
            "links": "estimate: a copy within the one memory, read and written",
        },
    ),
)
