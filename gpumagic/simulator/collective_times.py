"""How long collectives take: rings, trees and switches that add up, by bytes and hops.

A collective is as fast as the best of its ways. A way costs a time for each hop of a
message and a time for the bytes through its narrowest place; each can be gone by two
protocols, one that starts at once and wastes bandwidth, and one for long messages.
What joins the GPUs of a node and what joins nodes is a `Fabric` each.

The figures are fitted to half of the rows in `tests/simulator/published_collectives.py`
and hold for the other half; `python -m benchmarks.simulator_collectives` says how well.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from gpumagic.report.record import Record

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


@dataclass(frozen=True)
class Fabric(Record):
    """What joins GPUs, as each of them sees it."""

    name: str
    bytes_per_s: float  # what a GPU sends in one direction, in long messages
    hop_ns: float  # from one GPU to the next, in the protocol for short messages
    short_share: float  # the share of the bandwidth that this protocol reaches
    long_hop_ns: float  # likewise a hop in the protocol for long messages
    # of a switch that adds up by itself: the bytes of a tensor that it reduces in a
    # second, however many GPUs; None where none does
    switch_bytes_per_s: float | None = None
    switch_ns: float = 0.0  # what it takes before the first of them

    def pace(self, *, short: bool) -> tuple[float, float]:
        """Nanoseconds for a hop and bytes a second, in one of the two protocols."""
        if short:
            return self.hop_ns, self.bytes_per_s * self.short_share
        return self.long_hop_ns, self.bytes_per_s


@dataclass(frozen=True)
class Placement(Record):
    """Which GPUs take part: `nodes` nodes, with up to `per_node` of them in each."""

    model: GpuModel
    per_node: int
    nodes: int = 1
    network: str = ""

    @property
    def ranks(self) -> int:
        """How many GPUs there are in all."""
        return self.per_node * self.nodes


class Told(NamedTuple):
    """What a collective takes, and which way it goes."""

    ns: int
    algorithm: str
    protocol: str


# Between nodes, for each GPU. Fitted: ndr-400 and tcpxo-200; of the others the hops are
# those of ndr-400, and the bandwidth is 94 % of the line, as there.
NETWORKS: Final = {
    "ndr-400": Fabric("InfiniBand NDR, 400 Gb/s a GPU", 47.3e9, 21_000, 0.116, 48_500),
    "hdr-200": Fabric("InfiniBand HDR, 200 Gb/s a GPU", 23.6e9, 21_000, 0.116, 48_500),
    "tcpxo-200": Fabric(
        "GPUDirect-TCPXO, 200 Gb/s a GPU", 22.7e9, 57_200, 0.103, 402e3
    ),
    "edr-100": Fabric("InfiniBand EDR, 100 Gb/s a GPU", 11.8e9, 21_000, 0.116, 48_500),
    "shared-100": Fabric("100 Gb/s for 8 GPUs", 1.47e9, 21_000, 0.116, 48_500),
}
_OWN_NETWORK: Final = {
    "h100": "ndr-400",
    "h200": "ndr-400",
    "a100": "hdr-200",
    "a100-40gb": "hdr-200",
    "v100": "edr-100",
}
# With a switch between all GPUs of a node; those of Hopper add up.
_SWITCHED: Final = {
    "h100": Fabric("NVSwitch 3", 370e9, 917, 0.63, 5_500, 275e9, 70_600),
    "h200": Fabric("NVSwitch 3", 370e9, 917, 0.63, 5_500, 275e9, 70_600),
    "a100": Fabric("NVSwitch 2", 228e9, 917, 0.111, 3_810),
    "a100-40gb": Fabric("NVSwitch 2", 228e9, 917, 0.111, 3_810),
    # A mesh of NVLinks, through which several rings go: 8 x V100 in DGX-1, estimate.
    "v100": Fabric("NVLink mesh", 130e9, 1_000, 0.15, 5_000),
}
# Through PCI Express every byte goes over the host's bridges, which all GPUs share.
_PCIE_HOP_NS, _PCIE_LONG_HOP_NS, _PCIE_SHORT_SHARE = 2_500, 12_000, 0.35
_THROUGH_HOST = 0.5  # written and read again: no GPU can address another
_SHORT, _LONG = "LL", "SIMPLE"
_SWITCH_TREE: Final = 0.91  # of the switch's rate, with a network behind it
_WHOLE = (Collective.BROADCAST, Collective.REDUCE)


def fabric_of(model: GpuModel) -> Fabric:
    """What joins GPUs of this kind in one node."""
    known = _SWITCHED.get(model.key)
    if known is not None:
        return known
    links = model.links
    bytes_per_s = links.peer_bytes_per_s
    if bytes_per_s is None:
        slower = min(links.pinned_h2d_bytes_per_s, links.pinned_d2h_bytes_per_s)
        bytes_per_s = slower * _THROUGH_HOST
    return Fabric(
        "PCI Express", bytes_per_s, _PCIE_HOP_NS, _PCIE_SHORT_SHARE, _PCIE_LONG_HOP_NS
    )


def collective_time(
    what: Collective, nbytes: int, placement: Placement, algorithm: str = ""
) -> Told:
    """How long a collective takes from the arrival of its last GPU on."""
    if placement.ranks < 2:
        moved_s = 2 * nbytes / placement.model.copied_bytes_per_s
        return Told(round(FLOOR_NS + moved_s * 1e9), "RING", _SHORT)
    ways = [
        Told(max(1, round(FLOOR_NS + ns)), name, protocol)
        for protocol in (_SHORT, _LONG)
        for name, ns in _ways(what, nbytes, placement, short=protocol == _SHORT)
        if not algorithm or name == algorithm.upper()
    ]
    return min(ways)


def _ways(
    what: Collective, nbytes: int, placement: Placement, *, short: bool
) -> Iterator[tuple[str, float]]:
    """The ways to do it in one protocol, with the nanoseconds of each."""
    model = placement.model
    network = placement.network or _OWN_NETWORK.get(model.key, "shared-100")
    inside = fabric_of(model)
    (hop, near), (far, out) = (
        inside.pace(short=short),
        NETWORKS[network].pace(short=short),
    )
    nodes, gpus, ranks = placement.nodes, placement.per_node, placement.ranks
    if what is Collective.ALL_TO_ALL:
        sent = nbytes * (ranks - 1) / ranks
        abroad = (nodes - 1) / nodes
        seconds = max(sent * (1 - abroad) / near, sent * abroad / out)
        yield "RING", (far if nodes > 1 else hop) + seconds * 1e9
        return
    trips = 2 if what is Collective.ALL_REDUCE else 1
    # All adapters of a node send at once, each for a ring of its own.
    narrow = near if nodes == 1 else min(near, gpus * out)
    share = 1.0 if what in _WHOLE else (ranks - 1) / ranks
    crossing = nodes / ranks if nodes > 1 else 0.0
    step = hop * (1 - crossing) + far * crossing
    yield "RING", trips * ((ranks - 1) * step + share * nbytes / narrow * 1e9)
    if what is not Collective.ALL_REDUCE:
        return
    added_up = None if short else inside.switch_bytes_per_s
    if nodes > 1:
        # Up and down a tree of nodes: few hops between them, and bytes in halves. Two
        # nodes are each other's only neighbour, so that each byte crosses once; a node
        # between others sends it up and takes it from two below.
        within = near / 2 if added_up is None else added_up * _SWITCH_TREE
        across = gpus * out / (1 if nodes == 2 else 2)
        hops = 2 * (gpus - 1) * hop + 2 * math.ceil(math.log2(nodes)) * far
        yield "TREE", hops + nbytes / min(within, across) * 1e9
    elif added_up is not None:
        yield "NVLS", inside.switch_ns + nbytes / added_up * 1e9
