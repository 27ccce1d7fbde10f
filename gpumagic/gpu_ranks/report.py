"""What `%gpu_ranks` answers: who sits where, what a cell did, who is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Report

if TYPE_CHECKING:
    from gpumagic.gpu_ranks.records import (
        CollectiveSum,
        RankMemory,
        RankTime,
        Seat,
        SeatFinding,
        Unfinished,
        Waiting,
    )


@dataclass(frozen=True)
class SeatsReport(Report):
    """Where ranks sit."""

    seats: tuple[Seat, ...]  # in order of their names
    findings: tuple[SeatFinding, ...] = ()  # what is wrong with that, the gravest first
    unfinished: tuple[Unfinished, ...] = ()  # those that did not answer
    backend: str | None = None  # of the group, "nccl" or "gloo"; None without one
    group_died: str | None = None  # whether the group cannot be used any more, and why
    chosen: bool = False  # whether these seats have just been chosen
    # whether they were to be chosen, and each had a GPU of its own from its start on,
    # so that nothing was changed
    already: bool = False
    given_by: str | None = None  # who has given it, "Slurm"; None if nobody is known


@dataclass(frozen=True)
class RanksReport(Report):
    """A cell, or a block of code, on all ranks.

    Attributes:
        times: By rank; above 64 ranks those that are told one by one.

        seats: Where they sit.

        memory: By rank, likewise.

        with_memory: Whether memory was what was asked for.

        unfinished: Ranks without a whole answer.

        ranks: How many there were.

        matched: How many collectives were found on all ranks of their groups.

        unmatched: How many were not.

        slowest: The rank whose own work took longest; None where none stands out.

        ratio: Its own work over that in the median.

        during: Where it lies: "forward", "backward", "input", ...; None if unknown.

        phases_told: Whether parts of a step were told apart, so that it lies in none of
            them alone where `during` is None.

        waits_more_s: How much longer a rank may have waited than is told, at most, as
            it is not known to the moment when it did something else.

        one_collective: The place of the collective that all of it comes before, where
            it is one alone.

        median_own_s: Of all ranks.

        least_own_s: Of all ranks.

        clock_error_s: How far the common clock may be off; None without one.

        told_by: What has told when ranks were in a collective, where the block was
            watched: "flight recorder", "kernels", "profiler" or "simulator"; "" where
            nothing has, or the cell was run from a notebook.

        moves_known: Whether it is known how long data moved; else that is part of what
            a rank did by itself, and it waited at most for what is told.

        sends: How often ranks were seen to send to, or receive from, one other rank, of
            which nothing tells how long it took.

        told_s: The part of the time of which collectives are known, which all times
            then belong to; None for all of it, 0 where nothing is known of all ranks at
            once, so that no times are told.

        took_s: How long the slowest took altogether, where that is told of a part.

        bucketed: Whether only sums are known of each rank, as there are too many.

        left_out: Ranks that finished, of which others have not heard in time: they sent
            all they did, which cannot be compared with the sums of the others.

        waiting: Where a collective was still open at the end.

        steps_s: The time of each step by rank, where the code has told steps.

        code: What was run, its first line.

        differently: What the timing of the slowest rank found, and that of most others
            did not: "THROTTLED", "SYNCS", ...

        runs_out_first: The rank whose peak came nearest to the limit of its device.

        odd_in_memory: Ranks whose peak is far from that of the others, the farthest
            first.

        every: Of very many ranks what each did, without single waits; `times` holds
            those of them that are odd. Empty where `times` holds all.

        peaks_bytes: Of very many ranks the peak of each; `memory` holds those of them
            that are odd. Empty where `memory` holds all.

        collectives: What they did together, by name, the longest waits first.

        group_died: Why the group cannot be used any more; None if it can.
    """

    times: tuple[RankTime, ...]
    seats: tuple[Seat, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    with_memory: bool = False
    unfinished: tuple[Unfinished, ...] = ()
    ranks: int = 0
    matched: int = 0
    unmatched: int = 0
    slowest: int | None = None
    ratio: float | None = None
    during: str | None = None
    phases_told: bool = False
    one_collective: int | None = None
    median_own_s: float | None = None
    least_own_s: float | None = None
    clock_error_s: float | None = None
    told_by: str = ""
    moves_known: bool = True
    sends: int = 0
    told_s: float | None = None
    took_s: float | None = None
    bucketed: bool = False
    left_out: tuple[int, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    steps_s: tuple[tuple[int, tuple[float, ...]], ...] = ()
    code: str = ""
    differently: tuple[str, ...] = ()
    runs_out_first: int | None = None
    odd_in_memory: tuple[int, ...] = ()
    every: tuple[RankTime, ...] = ()
    peaks_bytes: tuple[int, ...] = ()
    collectives: tuple[CollectiveSum, ...] = ()
    group_died: str | None = None
    waits_more_s: float = 0.0


@dataclass(frozen=True)
class WhereReport(Report):
    """Who waits for whom just now."""

    waiting: tuple[Waiting, ...]  # open collectives, the longest wait first
    lines: tuple[tuple[int, str], ...] = ()  # where each rank is, as far as known
    seats: tuple[Seat, ...] = ()  # where they sit
    unfinished: tuple[Unfinished, ...] = ()  # ranks that do not answer
    told_by: str = ""  # "flight recorder", "stacks" or "" where nothing runs
    # ranks that wait all the same, as in receiving from another
    waiting_for_one: tuple[int, ...] = ()
