"""Ranks that train together, made up: each is a trace whose truth is known.

Every step takes input on the host, a forward, a backward in whose course buckets of
gradients are averaged beside it (as DistributedDataParallel does), and an optimizer
that waits for the last of them. A collective ends when the last rank has come, and the
data have moved. One rank may be slow somewhere.
"""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gpumagic.gpu_open.records import Collective, FileRead, Idle, KernelSum, RankTrace
from gpumagic.report.events import length, length_within, merged, within

MS = 1_000_000
EPOCH_NS = 1_760_000_000 * 10**9

_INPUT_NS, _FORWARD_NS, _PIECE_NS, _OPTIMIZER_NS = 2 * MS, 20 * MS, 10 * MS, 6 * MS
_MOVES_NS, _WAY_NS = 4 * MS, 10_000
_KINDS = {
    "forward": ("ampere_sgemm_128x64_tn", "matrix product"),
    "backward": ("ampere_sgemm_64x64_nt", "matrix product"),
    "optimizer": ("multi_tensor_apply_kernel", "elementwise"),
}
_INPUT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass
class _Rank:
    """What one rank has done, by true time in nanoseconds."""

    now_ns: int
    work: list[tuple[str, int, int]] = field(default_factory=list)
    stalls: list[tuple[str, int, int]] = field(default_factory=list)
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)

    def works(self, phase: str, took_ns: float) -> None:
        """The device is busy with a phase."""
        began_ns, self.now_ns = self.now_ns, self.now_ns + int(took_ns)
        self.work.append((phase, began_ns, self.now_ns))

    def stalls_in(self, name: str, took_ns: float) -> None:
        """The host has nothing launched, so the device is idle."""
        if took_ns > 0:
            began_ns, self.now_ns = self.now_ns, self.now_ns + int(took_ns)
            self.stalls.append((name, began_ns, self.now_ns))


def training(  # noqa: PLR0913 -- what is made up can be anything
    count: int = 8,
    *,
    steps: int = 4,
    buckets: int = 4,
    slow: int | None = None,
    where: str = "backward",
    by_s: float = 0.02,
    noise: float = 0.02,
    clocks: str = "shared",
    numbered: bool = True,
    seed: int = 0,
) -> list[RankTrace]:
    """Traces of ranks that train.

    One may be slower: in each forward, backward or input, before one collective only,
    or in a third of the steps at random. Clocks are of one host; or seconds from each
    other, and drifting; or have begun anywhere.
    """
    draw = random.Random(seed)
    ranks = [_Rank(draw.randrange(0, MS)) for _ in range(count)]
    for step in range(steps):
        for number, rank in enumerate(ranks):
            more_ns = by_s * 1e9 if number == slow else 0.0
            about = lambda typical_ns: typical_ns * max(draw.gauss(1, noise), 0.1)  # noqa: E731
            late_ns = more_ns if where == "input" else 0.0
            rank.stalls_in(_INPUT, about(_INPUT_NS) + late_ns)
            slower = where == "forward"
            rank.works("forward", about(_FORWARD_NS) + more_ns * slower)
            rank.ready = []
            for bucket in range(buckets):
                slower = where == "backward"
                rank.works("backward", about(_PIECE_NS) + more_ns / buckets * slower)
                if where == "collective" and (step, bucket) == (steps // 2, 1):
                    rank.stalls_in("MyHook.backward", more_ns)
                rank.ready.append(rank.now_ns)
        _average(ranks, buckets, draw)
        for rank in ranks:
            rank.works("optimizer", _OPTIMIZER_NS * max(draw.gauss(1, noise), 0.1))
    told = {"clocks": clocks, "numbered": numbered}
    return [_trace(each, at, count, draw, **told) for at, each in enumerate(ranks)]


def _average(ranks: list[_Rank], buckets: int, draw: random.Random) -> None:
    """One bucket after the other, each once all ranks have come to it."""
    free_ns = [0] * len(ranks)
    for bucket in range(buckets):
        # Every second one is on a stream of its own, so that they overlap.
        came = [
            rank.ready[bucket]
            if bucket % 2
            else max(rank.ready[bucket], free_ns[place])
            for place, rank in enumerate(ranks)
        ]
        done_ns = max(came) + _MOVES_NS
        for place, (rank, came_ns) in enumerate(zip(ranks, came, strict=True)):
            end_ns = done_ns + draw.randrange(_WAY_NS)
            rank.parts.append((bucket, came_ns, end_ns))
            free_ns[place] = end_ns
    for place, rank in enumerate(ranks):
        rank.now_ns = max(rank.now_ns, free_ns[place])


def _trace(  # noqa: PLR0913 -- see above
    rank: _Rank,
    number: int,
    world_size: int,
    draw: random.Random,
    *,
    clocks: str,
    numbered: bool,
) -> RankTrace:
    set_ns = 0 if clocks == "shared" else draw.randrange(-5 * 10**9, 5 * 10**9)
    drift = 0.0 if clocks == "shared" else draw.uniform(-3e-5, 3e-5)
    own = lambda true_ns: int(true_ns * (1 + drift)) + set_ns  # noqa: E731
    zero_ns = own(rank.work[0][1])
    seconds = lambda true_ns: (own(true_ns) - zero_ns) / 1e9  # noqa: E731

    first_ns, last_ns = rank.work[0][1], rank.work[-1][2]
    work = [span[1:] for span in rank.work]
    moves = [span[1:] for span in rank.parts]
    beside = [within(merged(work), came, end) for _, came, end in rank.parts]
    took = lambda spans: length_within(merged(spans), first_ns, last_ns) / 1e9  # noqa: E731
    length_s = (last_ns - first_ns) / 1e9
    late_s = took([span[1:] for span in rank.stalls])
    sums = {
        phase: sum(end - start for name, start, end in rank.work if name == phase) / 1e9
        for phase in _KINDS
    }
    stalls: dict[str, float] = {}
    for name, start, end in rank.stalls:
        stalls[name] = stalls.get(name, 0.0) + took([(start, end)])
    return RankTrace(
        file=FileRead(f"rank{number}.json.gz", 10**6, 10**4),
        rank=number,
        world_size=world_size,
        length_s=length_s,
        busy_s=took(work + moves),
        kernels=tuple(
            KernelSum(*_KINDS[phase], 1, each) for phase, each in sums.items()
        ),
        idle=Idle(
            late_s,
            max(length_s - took(work + moves) - late_s, 0.0),
            0.0,
            tuple((name, each) for name, each in stalls.items() if each > 0),
        ),
        collectives=tuple(
            Collective(
                "all_reduce",
                "0",
                place + 100 * numbered,
                numbered,
                seconds(came),
                seconds(end),
                nbytes=(bucket + 1) << 20,
                hidden_s=length(beside[place]) / 1e9,
                hidden=tuple(tuple(map(seconds, span)) for span in beside[place]),
            )
            for place, (bucket, came, end) in enumerate(rank.parts)
        ),
        phases=(*sums.items(), ("input", stalls.get(_INPUT, 0.0))),
        host_length_s=length_s,
        zero_ns=(EPOCH_NS + zero_ns) * (clocks != "unknown"),
    )
