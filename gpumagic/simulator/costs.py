"""How long things take on a simulated GPU, in nanoseconds.

A kernel has a least time, which is that of its launch. Beside it there are two needs,
and the slower one counts: to compute, and to move bytes. Neither goes at the full rate
where there is too little to do at once:

- A matrix product is cut into tiles, one multiprocessor each, and these are done in
  waves. The last wave takes as long as a full one, and one tile as long as all that it
  has to add up. Libraries choose the tile, and whether several multiprocessors share a
  tile's sum, by what takes least; so does this.
- What works by rows, as a softmax, has a block for each; and a block has so many bytes
  on their way at a time.
- What fits in the cache comes from there.

Copies take a start and go at the pace of the link. What the host pays is a table of
calls. All figures are of one operation alone on an idle device; who waits for whom is
the scheduler's business.

Constants are the same for all models of a generation. "Recorded" is what CUPTI told of
two training jobs on A100 (tests/simulator/recorded.json has the figures).
"""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gpumagic.simulator.scheduler import FULL_SHARE, Engine

if TYPE_CHECKING:
    from gpumagic.simulator.models import GpuModel
    from gpumagic.simulator.operators import Rule

_NS_PER_S: Final = 1e9
_US: Final = 1_000
_MS: Final = 1_000_000
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30

_COPY_START_NS: Final = 1.5 * _US  # 0.3 to 2.2 us in three profiler logs
# A pageable copy to the device may return while this much is on its way.
_IN_FLIGHT_BYTES: Final = 64 * _KIB

# Growth with size is known from single reports: right within a factor of 3 to 10.
_MALLOC_NS, _MALLOC_NS_PER_GIB = 120 * _US, 8 * _MS
_FREE_NS, _FREE_NS_PER_GIB = 100 * _US, 8 * _MS
_PIN_NS, _PIN_NS_PER_GIB = 100 * _US, 238 * _MS  # the constant part is an estimate

# A core alone reads and writes; from 20 to 50 ms for 256 MiB.
_HOST_COPY_NS_PER_GIB: Final = 100 * _MS

_CONTEXT_BYTES_PER_MULTIPROCESSOR: Final = 3 * _MIB  # two cards; others have x1.6
_SMALLEST_CONTEXT_BYTES: Final = 100 * _MIB


class HostCosts:
    """What calls cost the host, the factor it is uncertain by, and its source."""

    raw_launch_ns: int = 3_000  # x1.7: 1.6 to 6.6 us in six reports
    eager_elementwise_ns: int = 5_000  # x1.6: 2.65 us on a desktop, 7.3 on a server
    eager_matmul_ns: int = 10_000  # x1.5: the floor of small torch matmuls
    view_ns: int = 1_500  # x2: estimate
    autograd_forward_ns: int = 2_000  # x2: estimate
    autograd_backward_ns: int = 4_000  # x2: estimate
    graph_replay_ns: int = 8_000  # x2: estimate
    graph_node_ns: int = 1_300  # x1.3: gpu-benches; on the device
    event_record_ns: int = 1_000  # x2: rmm, cudarc
    event_wait_ns: int = 1_000  # x2: cudarc
    query_ns: int = 1_000  # x2: as an event's record; estimate
    wait_stream_ns: int = 4_000  # x2: an event made, recorded, waited for, destroyed
    synchronize_stream_ns: int = 3_000  # x2: 2.25 to 5.4 us
    synchronize_device_ns: int = 4_000  # x2: 2.5 to 17.5 us
    async_copy_ns: int = 6_000  # x1.5: 5.3 to 9.4 us
    mem_get_info_ns: int = 10_000  # x1.3: sglang
    allocator_hit_ns: int = 1_000  # x2: estimate
    # paid once in a process
    context_ns: int = 150 * _MS  # 0.11 to 0.18 s; seconds with many GPUs
    module_load_ns: int = 10 * _MS  # the first kernel of a library's module
    first_launch_ns: int = 100 * _US  # of each further kernel
    cublas_ns: int = 20 * _MS  # one profiler log
    cudnn_ns: int = 200 * _MS  # an estimate within x5


_HALF_TYPES: Final = ("fp16", "bf16")

# The shortest elementwise kernel of torch, in microseconds, by generation.
_LEAST_US: Final = {
    (7, 0): 2.0,  # an estimate between its neighbours
    (7, 5): 1.7,  # 1.3 to 1.7 in a profiler's log of a T4
    (8, 0): 3.0,  # recorded: 3 to 4, by whole ones; 1.8 for a kernel without torch
    (8, 9): 1.5,  # 0.9 to 1.4 in a profiler's log of the generation after it
    (9, 0): 1.0,  # measured: 0.8 to 1.3 on an H200
}
_UNKNOWN_LEAST_US: Final = 2.0

# What a streaming kernel gets of the cache, in bytes a clock and multiprocessor:
# recorded, an addition in place of 25 MB in 12 us; 16 to 20 in microbenchmarks of V100
# and T4, and 14 for an addition of 12 MB on an RTX 4090.
_CACHE_BYTES_PER_CLOCK: Final = 18
# measured on an H200: copies, casts and additions of 8 to 34 MB at 7.6 to 8.7 TB/s
_CACHE_BYTES_PER_CLOCK_OF_HOPPER: Final = 30
_CACHE_KEPT: Final = 0.5  # up to this share of the cache all is found there again,
_CACHE_GONE: Final = 2.0  # and nothing from this multiple of it on

# By Little's law: a block has 32 KiB on their way, which take 0.7 us from the memory.
_BYTES_PER_S_OF_BLOCK: Final = (32 << 10) / 0.7e-6
# Of attention, a block goes through so many queries and keys: where queries alone are
# too few to fill the device, its libraries share the keys out as well.
_QUERIES, _KEYS = 64, 128

# Tiles of libraries, with the share of its rate that a multiprocessor keeps in them:
# smaller ones load more for each product. Recorded in TF32, by the growth with the
# depth: 64 x 64 go at 0.65 of the rate at which 128 x 128 and 256 x 128 go. The others
# are estimates between them.
_TILES: Final = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 1.0),
    (128, 64, 0.85),
    (64, 128, 0.85),
    (64, 64, 0.65),
    (128, 32, 0.45),
    (32, 128, 0.45),
    (32, 32, 0.25),
)
# The pipeline of each further wave is filled anew, but for what other blocks hide.
_NEXT_WAVE_NS: Final = 500
# Sums are shared, with this depth left to each part at least, and are added up by a
# second kernel. Nothing recorded is shared in operands that are not aligned.
_PARTS_OF_A_SUM: Final = (1, 2, 4, 8, 16)
_LEAST_DEPTH: Final = 256
_ADDING_UP_NS: Final = 2000
# Tensor cores are fed 16 bytes at a time, before Ampere 8 (published: fp16 rows of 5124
# numbers are no slower on a V100). Where rows begin elsewhere they go at half their
# rate, and nobody shares a sum. Recorded: with odd sizes TF32 is left to the units of
# fp32. Here are the bytes of a number on them.
_FED_BYTES: Final = 16
_FED_BYTES_BEFORE_AMPERE: Final = 8
_ON_TENSOR_CORES: Final = {"tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_RESULT_BYTES: Final = {"fp16": 2, "bf16": 2, "fp64": 8}  # of the others 4

_THREADS_OF_MULTIPROCESSOR: Final = 2048
_FEW: Final = 0.75  # fewer tiles than this share of the multiprocessors are few

# Any number of batches, rows, columns, depth.
Product: TypeAlias = tuple[int, ...]


class Blocks(NamedTuple):
    """Work that is cut into so many blocks, whatever its operator does in them."""

    flops: float
    blocks: int


Amount: TypeAlias = "float | Product | Blocks"


class KernelTime(NamedTuple):
    """What is known of one kernel before it runs."""

    ns: int  # how long it takes
    share: int  # how much of the device it takes up, out of `FULL_SHARE`
    bound: str  # what bounds it, in the words of a view


def blocks_of_attention(queries: int, keys: int) -> int:
    """How many blocks can go through the pairs of one head."""
    return -(-queries // _QUERIES) * -(-keys // _KEYS)


class CostModel:
    """The times of one model of GPU."""

    __slots__ = (
        "_cache_bytes_per_s",
        "_copied_bytes_per_s",
        "_least_ns",
        "_model",
        "_ns_per_byte",
        "context_bytes",
        "cublas_workspace_bytes",
        "host",
    )

    def __init__(self, model: GpuModel) -> None:
        self.host = HostCosts
        context = model.multiprocessors * _CONTEXT_BYTES_PER_MULTIPROCESSOR
        hopper = model.compute_capability >= (9, 0)
        self.context_bytes = max(_SMALLEST_CONTEXT_BYTES, context)
        # of each stream, from the caching allocator
        self.cublas_workspace_bytes = 32 * _MIB if hopper else 8 * _MIB + 128 * _KIB
        self._model = model
        self._copied_bytes_per_s = model.copied_bytes_per_s
        per_clock = (
            _CACHE_BYTES_PER_CLOCK_OF_HOPPER if hopper else _CACHE_BYTES_PER_CLOCK
        )
        self._cache_bytes_per_s = max(
            model.multiprocessors * model.clock_hz * per_clock,
            model.copied_bytes_per_s,
        )
        least_us = _LEAST_US.get(model.compute_capability, _UNKNOWN_LEAST_US)
        self._least_ns = 1000 * least_us
        links = model.links
        h2d = _NS_PER_S / links.pinned_h2d_bytes_per_s
        d2h = _NS_PER_S / links.pinned_d2h_bytes_per_s
        peer = h2d + d2h
        if links.peer_bytes_per_s:
            peer = _NS_PER_S / links.peer_bytes_per_s
        self._ns_per_byte = {  # by engine, and whether the host's memory is pinned
            (Engine.H2D, True): h2d,
            (Engine.D2H, True): d2h,
            (Engine.H2D, False): _NS_PER_S / links.pageable_h2d_bytes_per_s,
            (Engine.D2H, False): _NS_PER_S / links.pageable_d2h_bytes_per_s,
            (Engine.PEER, True): peer,
            (Engine.PEER, False): peer,
        }

    def copy_ns(self, engine: Engine, nbytes: int, *, pinned: bool) -> int:
        """The time of a copy on its engine; peers do not care for `pinned`."""
        return int(_COPY_START_NS + nbytes * self._ns_per_byte[engine, pinned])

    def staging_ns(self, nbytes: int) -> int:
        """How long a pageable copy to the device holds the host.

        It returns when all bytes lie in the driver's own pinned buffer, of which the
        last part may still be on its way.
        """
        pageable = self._ns_per_byte[Engine.H2D, False]
        pinned = self._ns_per_byte[Engine.H2D, True]
        return int(nbytes * pageable - min(nbytes, _IN_FLIGHT_BYTES) * pinned)

    def malloc_ns(self, nbytes: int) -> int:
        """What `cudaMalloc` costs the host; it waits for nothing."""
        return _MALLOC_NS + nbytes * _MALLOC_NS_PER_GIB // _GIB

    def free_ns(self, nbytes: int) -> int:
        """What `cudaFree` costs the host once the whole device is idle."""
        return _FREE_NS + nbytes * _FREE_NS_PER_GIB // _GIB

    def host_alloc_ns(self, nbytes: int) -> int:
        """What page-locking costs the host, and giving it back as well."""
        return _PIN_NS + nbytes * _PIN_NS_PER_GIB // _GIB

    def host_copy_ns(self, nbytes: int) -> int:
        """What a copy within its own memory costs the host."""
        return nbytes * _HOST_COPY_NS_PER_GIB // _GIB

    # ------------------------------------------------------------ one kernel

    def kernel(self, rule: Rule, dtype: str, work: Amount, bytes_: float) -> KernelTime:
        """How long a kernel takes, and why."""
        multiprocessors = self._model.multiprocessors
        least_ns = self._least_ns * rule.least + rule.more_us * 1000
        moving_ns = self._moving_ns(rule, bytes_)
        places, pieces, lonely = 0, "tiles", False
        if isinstance(work, Blocks):
            places, pieces = max(work.blocks, 1), "blocks"
            # the last wave takes as long as a full one
            computing_ns = self._computing_ns(rule, dtype, work.flops)
            computing_ns *= -(-places // multiprocessors) * multiprocessors / places
            # so few blocks have less on their way than the memory could give
            given = min(places * _BYTES_PER_S_OF_BLOCK, self._copied_bytes_per_s)
            slower = self._copied_bytes_per_s / given
            moving_ns, lonely = moving_ns * slower, slower > 1
        elif isinstance(work, tuple) and rule.tiled and min(work[-3:-1]) > 1:
            computing_ns, places = self._product(rule, dtype, (*work,))
        else:  # with a vector a matrix is only read
            flops = 2.0 * prod(work) if isinstance(work, tuple) else work
            computing_ns = self._computing_ns(rule, dtype, flops)
        arithmetic = computing_ns > moving_ns
        longer_ns = max(computing_ns, moving_ns)
        if least_ns >= longer_ns:
            bound = "launch"
        elif 0 < places < multiprocessors * _FEW and (arithmetic or lonely):
            bound = f"too few {pieces}: {places} for {multiprocessors} multiprocessors"
        else:
            bound = "arithmetic" if arithmetic else "bandwidth"
        if places:
            share = min(places, multiprocessors) * FULL_SHARE // multiprocessors
        else:
            threads = multiprocessors * _THREADS_OF_MULTIPROCESSOR
            share = min(int(bytes_) >> 2, threads) * FULL_SHARE // threads or 1
        return KernelTime(int(least_ns + longer_ns + 0.5), share, bound)

    def _moving_ns(self, rule: Rule, bytes_: float) -> float:
        moved = bytes_ * rule.passes
        kept, gone = (
            each * self._model.l2_bytes for each in (_CACHE_KEPT, _CACHE_GONE)
        )
        near = moved  # what is still in the cache from what ran before
        if moved > kept:
            near = max(0.0, kept * (gone - moved) / (gone - kept))
        far_ns = (moved - near) * _NS_PER_S / self._copied_bytes_per_s
        plain_ns = near * _NS_PER_S / self._cache_bytes_per_s + far_ns
        if not rule.memory_efficiency:
            return plain_ns
        return plain_ns * self._model.memory_efficiency / rule.memory_efficiency

    def _computing_ns(self, rule: Rule, dtype: str, flops: float) -> float:
        if not rule.uses_flops:
            return 0.0
        return flops / self._flops_per_s(rule, dtype) * _NS_PER_S

    def _flops_per_s(self, rule: Rule, dtype: str) -> float:
        model = self._model
        reached = model.matmul_flops_per_s(dtype)
        own = rule.half_efficiency
        if own and dtype in _HALF_TYPES and model.has_units_for(dtype):
            reached = model.peak_flops[dtype] * own
        return reached * rule.compute_factor

    def _product(self, rule: Rule, dtype: str, sizes: Product) -> tuple[float, int]:
        """How long the multiprocessors compute, and how many tiles keep them busy."""
        *several, rows, columns, depth = sizes
        batch, multiprocessors = prod(several), self._model.multiprocessors
        flops_per_s, aligned = self._aligned_rate(rule, dtype, columns, depth)
        flops_per_ns = flops_per_s / multiprocessors / _NS_PER_S
        results, item = batch * rows * columns, _RESULT_BYTES.get(dtype, 4)
        best = (inf, 0)
        for high, wide, kept in _TILES:
            tiles = batch * -(-rows // high) * -(-columns // wide)
            step_ns = 2 * high * wide / (flops_per_ns * kept)  # one deeper
            last = min(high * wide * min(tiles, multiprocessors), results)
            end_ns = last * item * _NS_PER_S / self._copied_bytes_per_s
            for parts in _PARTS_OF_A_SUM if aligned else (1,):
                deep = max(-(-depth // parts), min(depth, _LEAST_DEPTH))
                waves = -(-tiles * parts // multiprocessors)
                took_ns = (
                    waves * deep * step_ns + max(waves - 1, 0) * _NEXT_WAVE_NS + end_ns
                )
                if parts > 1:
                    sums = 4 * parts * results  # in fp32
                    took_ns += _ADDING_UP_NS
                    took_ns += sums * _NS_PER_S / self._cache_bytes_per_s
                best = min(best, (took_ns, tiles * parts))
        return best

    def _aligned_rate(
        self, rule: Rule, dtype: str, columns: int, depth: int
    ) -> tuple[float, bool]:
        """The rate that a device reaches in rows of these lengths; if they lie well."""
        rate, item = self._flops_per_s(rule, dtype), _ON_TENSOR_CORES.get(dtype)
        if item is None or not self._model.has_units_for(dtype):
            return rate, True
        ampere = self._model.compute_capability >= (8, 0)
        fed = _FED_BYTES if ampere else _FED_BYTES_BEFORE_AMPERE
        if (columns | depth) * item % fed == 0:
            return rate, True
        if dtype == "tf32" and (columns | depth) & 1:
            return self._flops_per_s(rule, "fp32"), False
        return rate / 2, False
