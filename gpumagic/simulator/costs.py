"""How long things take on a simulated GPU, in nanoseconds.

Kernels have a module of their own, `kernel_times`. Copies take a start and go at the
pace of the link. What the host pays is a table of calls. All figures are of one
operation alone on an idle device; who waits for whom is the scheduler's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpumagic.report.record import Record
from gpumagic.simulator.engines import Engine
from gpumagic.simulator.kernel_times import KernelTimes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumagic.simulator.models import GpuModel, Links

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


@dataclass(frozen=True)
class HostCosts(Record):
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


@dataclass(frozen=True)
class FirstUse(Record):
    """What is paid once in a process, by the host and in memory of the device."""

    context_bytes: int
    cublas_workspace_bytes: int  # of each stream, from the caching allocator
    context_ns: int = 150 * _MS  # 0.11 to 0.18 s; seconds with many GPUs
    module_load_ns: int = 10 * _MS  # the first kernel of a library's module
    first_launch_ns: int = 100 * _US  # of each further kernel
    cublas_ns: int = 20 * _MS  # one profiler log
    cudnn_ns: int = 200 * _MS  # an estimate within x5


class CostModel:
    """The times of one model of GPU."""

    __slots__ = ("_ns_per_byte", "first_use", "host", "kernel")

    def __init__(self, model: GpuModel) -> None:
        self.host = HostCosts()
        context = model.multiprocessors * _CONTEXT_BYTES_PER_MULTIPROCESSOR
        hopper = model.compute_capability >= (9, 0)
        self.first_use = FirstUse(
            context_bytes=max(_SMALLEST_CONTEXT_BYTES, context),
            cublas_workspace_bytes=32 * _MIB if hopper else 8 * _MIB + 128 * _KIB,
        )
        self.kernel = KernelTimes(model).of
        self._ns_per_byte = _ns_per_byte(model.links)

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


def _ns_per_byte(links: Links) -> Mapping[tuple[Engine, bool], float]:
    """By engine, and whether the host's memory is pinned."""
    h2d = _NS_PER_S / links.pinned_h2d_bytes_per_s
    d2h = _NS_PER_S / links.pinned_d2h_bytes_per_s
    straight = links.peer_bytes_per_s
    peer = h2d + d2h if straight is None else _NS_PER_S / straight
    return {
        (Engine.H2D, True): h2d,
        (Engine.D2H, True): d2h,
        (Engine.H2D, False): _NS_PER_S / links.pageable_h2d_bytes_per_s,
        (Engine.D2H, False): _NS_PER_S / links.pageable_d2h_bytes_per_s,
        (Engine.PEER, True): peer,
        (Engine.PEER, False): peer,
    }
