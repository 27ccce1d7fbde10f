"""How long collectives take among the GPUs of one node, and which were called.

A collective is as fast as the best of its ways: a ring, or a switch that adds up. A way
costs a time for each hop of a message and a time for the bytes through its narrowest
place; each can be gone by two protocols, one that starts at once and wastes bandwidth,
and one for long messages. What joins the GPUs is a `Fabric`.

The figures are fitted to half of the rows in `tests/simulator/published_collectives.py`
and hold for the other half; `python -m benchmarks.simulator_collectives` says how well.
"""

from __future__ import annotations

import contextlib
import enum
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.simulator.models import GpuModel

# Of a kernel that sends nothing; a ring of one GPU takes about that.
FLOOR_NS: Final = 5_000
# What a call holds its thread: one at a time took 20.5 us longer than calls in a row
# (ml-engineering, 8 x H200), of which a launch is 2.5.
HOST_NS: Final = 18_000


class Collective(enum.Enum):
    """What several GPUs do together, by the name of NCCL's kernel for it."""

    ALL_REDUCE = "AllReduce"
    ALL_GATHER = "AllGather"
    REDUCE_SCATTER = "ReduceScatter"
    BROADCAST = "Broadcast"
    REDUCE = "Reduce"
    ALL_TO_ALL = "AllToAll"


class Fabric(NamedTuple):
    """What joins GPUs, as each of them sees it."""

    bytes_per_s: float  # what a GPU sends in one direction, in long messages
    hop_ns: float  # from one GPU to the next, in the protocol for short messages
    short_share: float  # the share of the bandwidth that this protocol reaches
    long_hop_ns: float  # likewise a hop in the protocol for long messages
    # of a switch that adds up by itself: the bytes of a tensor that it reduces in a
    # second, however many GPUs; 0 where none does
    switch_bytes_per_s: float = 0.0
    switch_ns: float = 0.0  # what it takes before the first of them


# With a switch between all GPUs of a node; those of Hopper add up.
_NVSWITCH_3: Final = Fabric(370e9, 917, 0.63, 5_500, 275e9, 70_600)
_NVSWITCH_2: Final = Fabric(228e9, 917, 0.111, 3_810)
_SWITCHED: Final = {
    "h100": _NVSWITCH_3,
    "h200": _NVSWITCH_3,
    "a100": _NVSWITCH_2,
    "a100-40gb": _NVSWITCH_2,
    # A mesh of NVLinks, through which several rings go: 8 x V100 in DGX-1, estimate.
    "v100": Fabric(130e9, 1_000, 0.15, 5_000),
}
# Through PCI Express every byte goes over the host's bridges, which all GPUs share.
_PCIE_HOP_NS, _PCIE_LONG_HOP_NS, _PCIE_SHORT_SHARE = 2_500, 12_000, 0.35
_THROUGH_HOST = 0.5  # written and read again: no GPU can address another
_SHORT, _LONG = "LL", "SIMPLE"
_MOST_CALLS = 100_000  # that are remembered
_WHOLE = (Collective.BROADCAST, Collective.REDUCE)


def fabric_of(model: GpuModel) -> Fabric:
    """What joins GPUs of this kind in one node."""
    if model.key in _SWITCHED:
        return _SWITCHED[model.key]
    links = model.links
    slower = min(links.pinned_h2d_bytes_per_s, links.pinned_d2h_bytes_per_s)
    bytes_per_s = links.peer_bytes_per_s or slower * _THROUGH_HOST
    return Fabric(bytes_per_s, _PCIE_HOP_NS, _PCIE_SHORT_SHARE, _PCIE_LONG_HOP_NS)


def collective_time(
    what: Collective, nbytes: int, model: GpuModel, ranks: int
) -> tuple[int, str]:
    """How long a collective takes from the arrival of its last GPU on, and its way."""
    if ranks < 2:
        moved_s = 2 * nbytes / model.copied_bytes_per_s
        return round(FLOOR_NS + moved_s * 1e9), f"RING_{_SHORT}"
    fabric = fabric_of(model)
    share, hops, trips = (ranks - 1) / ranks, ranks - 1, 1
    if what in _WHOLE:
        share = 1.0
    elif what is Collective.ALL_TO_ALL:
        hops = 1
    elif what is Collective.ALL_REDUCE:
        trips = 2
    short = fabric.hop_ns, fabric.bytes_per_s * fabric.short_share, _SHORT
    long = fabric.long_hop_ns, fabric.bytes_per_s, _LONG
    ways = [
        (
            trips * (hops * hop_ns + share * nbytes / bytes_per_s * 1e9),
            f"RING_{protocol}",
        )
        for hop_ns, bytes_per_s, protocol in (short, long)
    ]
    if what is Collective.ALL_REDUCE and fabric.switch_bytes_per_s:
        through_s = nbytes / fabric.switch_bytes_per_s
        ways.append((fabric.switch_ns + through_s * 1e9, f"NVLS_{_LONG}"))
    ns, way = min(ways)
    return round(FLOOR_NS + ns), way


# ------------------------------------------------------------------ what was called


class GroupCall(NamedTuple):
    """A collective that this process has called."""

    group: str  # what torch calls the group
    number: int  # how many the group had called before, and this one
    name: str  # as torch's function is called
    nbytes: int  # what it moves

    def __str__(self) -> str:
        return f"{self.name} of {self.nbytes} bytes"


class CollectiveCall(NamedTuple):
    """One collective, as this process took part in it."""

    group: str  # the name that torch has for the group
    number: int  # how many the group had called before, and this one
    name: str  # of the kernel
    nbytes: int  # what it moved: the tensor that is reduced or sent, or all parts
    called_ns: int  # when the host called it
    ranks: tuple[int, ...]
    start_ns: int  # when this GPU came to it
    end_ns: int  # when it ended for all


class Roll:
    """Which collectives all groups of a process have called, and which one is open.

    Other threads look at it while the host waits: whatever they read was put there at
    once, without a lock.
    """

    def __init__(self) -> None:
        self.calls: deque[CollectiveCall] = deque(maxlen=_MOST_CALLS)
        self.last: dict[str, GroupCall] = {}  # by group
        # what the host waits in, or waited in until an error or Ctrl-C ended that, if
        # nothing was called since
        self.open: GroupCall | None = None

    def called(self, call: GroupCall) -> None:
        """A collective is called; all members do so in the same order."""
        self.last[call.group] = call
        self.open = None

    @contextlib.contextmanager
    def waiting(self, call: GroupCall) -> Iterator[None]:
        """The host waits in a collective during the block."""
        self.open = call
        yield
        self.open = None
