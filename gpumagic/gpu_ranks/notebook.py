"""What one line of the magic comes to: engines are asked, awaited and shown."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import analysis, choosing
from gpumagic.gpu_ranks.answers import Alive
from gpumagic.gpu_ranks.engines import Engines, client_in, hear, let_end, wait_for
from gpumagic.gpu_ranks.live import Panel
from gpumagic.gpu_ranks.options import GROUP, SELECT, WHERE, options_of
from gpumagic.gpu_ranks.outputs import show_outputs
from gpumagic.gpu_ranks.records import Seat, Unfinished
from gpumagic.notebook.live import place_in
from gpumagic.report.frontend import running_cell
from gpumagic.report.units import count_text, listed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from gpumagic.gpu_ranks.engines import Asked
    from gpumagic.gpu_ranks.options import Options
    from gpumagic.gpu_ranks.report import RanksReport, SeatsReport, WhereReport
    from gpumagic.notebook.magics import GpuMagics

_FREED_S, _FREEING_S = 2.0, 8.0
_LEAVING_S = 20.0  # an engine itself gives up before
_FRESH_S = 2.5  # within which a rank that runs has said where it is


class Notebook:
    """The cluster of one notebook, and what still runs on it.

    Args:
        magics: Through which reports are shown.
    """

    def __init__(self, magics: GpuMagics) -> None:
        self._magics = magics
        self._shell = magics.shell
        self._place = place_in(self._shell)  # of one line; the next has another
        self._engines: Engines | None = None
        self._last: Asked | None = None  # a cell, or what was not waited for
        self._open: list[Asked] = []  # what still ran when it was waited for no longer
        self._warm: set[int] = set()
        self._cells = 0
        self._began_ns = time.time_ns()  # engines may have heard of other notebooks
        self._most_whole = analysis.MOST_TOLD  # ranks; of more each sends its sums

    def answer(self, typed: argparse.Namespace, cell: str | None) -> Any:
        """Do what one line asks for."""
        __tracebackhide__ = True
        options = options_of(typed, above_a_cell=cell is not None)
        self._place = place_in(self._shell)
        try:
            report = self._report(options, cell)
        except BaseException:
            self._place.clear()
            raise
        # What failed on an engine is no report that somebody can do without.
        typed.quiet = typed.quiet and not report.unfinished
        if typed.quiet or typed.json:
            self._place.clear()
        return self._magics.show(report, typed, self._place)

    def _report(self, options: Options, cell: str | None) -> Any:
        engines = self._engines_here()
        if cell is not None:
            return self._run(engines, options, cell)
        words: dict[str, Callable[[Engines, Options], Any]] = {
            "": self._seats,
            SELECT: self._select,
            GROUP: self._group,
            WHERE: self._where,
        }
        return words[options.word](engines, options)

    def _engines_here(self) -> Engines:
        """Those of the cluster here; what was known of another is forgotten."""
        of_px = self._shell.magics_manager.registry.get("ParallelMagics")
        chosen = getattr(getattr(of_px, "view", None), "client", None)
        client = client_in(self._shell.user_ns, chosen)
        if self._engines is None or self._engines.client is not client:
            self._engines = Engines(client)
            self._last, self._open, self._warm = None, [], set()
        return self._engines

    # ------------------------------------------------------------------ seats

    def _seats(self, engines: Engines, options: Options) -> SeatsReport:
        """Of all that have nothing else to do; the others are named."""
        targets = engines.chosen(options.on)
        busy = engines.busy(targets)
        asked = self._asked(engines, "seat", [e for e in targets if e not in busy])
        working = tuple(
            Unfinished(engines.names.get(e, e), "silent", "it is busy") for e in busy
        )
        report = _seats_of(asked)
        return replace(report, unfinished=(*report.unfinished, *working))

    def _select(self, engines: Engines, options: Options) -> SeatsReport:
        """All or nothing: each engine is asked whether it could before any does."""
        targets = self._free(engines, options)
        local = _local_ranks(self._by_host(engines, targets))
        asked = _unless_stopped(self._asked(engines, "choices", targets))
        askers = {engine: _asker(asked, engine) for engine in targets}
        box = simulated_box()
        if box is not None and not any(each.choices for each in askers.values()):
            raise GpuMagicError(
                "the engines have no GPU: it is this notebook alone that simulates one",
                f"%px import gpumagic; {box.call()}",
            )
        if choosing.are_given(askers):
            by = choosing.given_by(askers)
            return replace(_seats_of(asked), already=True, given_by=by)
        names = choosing.names_of(askers)

        def choose(*, dry_run: bool) -> SeatsReport:
            asked = self._asked(
                engines,
                "choose",
                targets,
                lambda e: {
                    "gpu": names[e],
                    "local_rank": local[e],
                    "dry_run": dry_run,
                },
            )
            return _seats_of(asked)

        tried = choose(dry_run=True)
        if tried.unfinished or options.dry_run:
            return tried
        return replace(choose(dry_run=False), chosen=True)

    def _set_free(self, engines: Engines, stuck: Asked) -> None:
        """Let ranks come back that wait in a group and do not hear Ctrl-C.

        They are told beside the line that waits. Where that does not reach them, those
        that have come back leave the group: who waits for one of them hears of it.
        """
        until_s, gone = time.monotonic() + _FREEING_S, set[int]()
        while stuck.running and time.monotonic() < until_s:
            engines.free(stuck.running)
            let_end(stuck, within_s=_FREED_S)
            if not stuck.running:
                return
            here = {*stuck.results} - {*stuck.running} - gone
            free = sorted(here - {*engines.busy(sorted(here))}) if here else []
            if free:
                self._asked(engines, "leave", free, within_s=_LEAVING_S)
                gone.update(free)
                until_s = time.monotonic() + _FREEING_S
        if stuck.running:
            raise self._cannot_be_freed(engines, stuck)

    def _leave(self, engines: Engines, targets: Sequence[int]) -> None:
        """End the groups that engines are in, before they begin another one."""
        asked = _unless_stopped(
            self._asked(
                engines,
                "leave",
                targets,
                lambda _: {"awaited": False},
                within_s=_LEAVING_S,
            )
        )
        refused = {e: asked.said(e).get("refused") for e in targets}
        stuck = [e for e in targets if refused[e] or e in asked.running]
        if stuck:
            why = refused[stuck[0]] or "it does not answer"
            raise GpuMagicError(
                f"{count_text(len(stuck), 'engine')} cannot leave the group: "
                f"{listed(list(map(str, stuck)))} ({why})",
                engines.restart_line(stuck, self._shell.user_ns),
            )

    def _cannot_be_freed(self, engines: Engines, stuck: Asked) -> GpuMagicError:
        """Who still waits and until when, and what to type."""
        running = stuck.running
        alive = [each for each in stuck.checked() if isinstance(each, Alive)]
        until = next(filter(None, map(analysis.until_text, alive)), "")
        lines = {each.line.where for each in alive if each.line is not None}
        at = f", at {lines.pop()}" if len(lines) == 1 else ""
        return GpuMagicError(
            f"{count_text(len(running), 'engine')} cannot be freed: "
            f"{listed(list(map(str, running)))}{at}{f' ({until})' if until else ''}",
            engines.restart_line(running, self._shell.user_ns),
        )

    def _group(self, engines: Engines, options: Options) -> SeatsReport:
        for stuck in self._open:
            if stuck.interrupted:
                self._set_free(engines, stuck)
        hosts = self._by_host(engines, self._free(engines, options))
        local = _local_ranks(hosts)
        # Engines come as they come; ranks of one host follow each other, as meshes of
        # devices take for granted.
        targets, one_host = list(local), len(hosts) == 1
        if options.backend is not None:
            self._check_backend(engines, targets, options.backend)
        self._leave(engines, targets)
        first = targets[0]
        meeting = _unless_stopped(
            self._asked(
                engines,
                "meet",
                [first],
                lambda _: {"one_host": one_host},
            )
        )
        place = meeting.said(first)
        if "port" not in place:
            (why,) = meeting.checked()
            raise GpuMagicError(
                f"engine {first} cannot begin a group: {getattr(why, 'text', '')}",
                "pip install gpumagic[torch] where the engines are, or --on others",
            )
        try:
            address = self._reached(engines, targets, place)
        except BaseException:
            engines.request("part", [first], lambda _: {}).begin()  # it closes its port
            raise
        asked = self._asked(
            engines,
            "join",
            targets,
            lambda engine: {
                "rank": targets.index(engine),
                "world_size": len(targets),
                "local_rank": local[engine],
                "backend": options.backend,
                "address": address,
                "port": place["port"],
                "most_whole": self._most_whole,
            },
        )
        report = _seats_of(asked, "raised")
        self._warm |= {e for e in targets if not asked.said(e).get("refused")}
        return report

    def _check_backend(
        self, engines: Engines, targets: Sequence[int], backend: str
    ) -> None:
        """Refuse one that an engine lacks, while the group before is still there."""
        asked = _unless_stopped(
            self._asked(engines, "backends", targets, lambda _: {"backend": backend})
        )
        for engine in targets:
            if lacks := asked.said(engine).get("refused"):
                raise GpuMagicError(
                    f"engine {engine} has {str(lacks)[:300]}",
                    "`%gpu_ranks group` without --backend takes what fits the devices",
                )

    def _reached(
        self, engines: Engines, targets: Sequence[int], place: Mapping[str, Any]
    ) -> str:
        """The first address of rank 0 that all get through to."""
        addresses, port = place["addresses"], place["port"]
        if len(addresses) == 1:
            return str(addresses[0])
        others = targets[1:]
        tried = _unless_stopped(
            self._asked(
                engines,
                "reach",
                others,
                lambda _: {"addresses": addresses, "port": port},
            )
        )
        got = {each: tried.said(each).get("reached") or () for each in others}
        for address in addresses:
            if all(address in its for its in got.values()):
                return str(address)
        worst = min(others, key=lambda each: len(got[each]))
        host = tried.said(worst).get("host")
        raise GpuMagicError(
            f"engine {worst} ({host}) gets through to no address that all reach of "
            f"{place['host']}: tried {listed(addresses)}, port {port}",
            "let the hosts reach each other's TCP ports (firewall), or --on others",
        )

    def _by_host(self, engines: Engines, targets: Sequence[int]) -> list[list[int]]:
        """The engines of each host, in their order."""
        hosts: dict[tuple[str, str | None], list[int]] = {}
        asked = _unless_stopped(self._asked(engines, "seat", targets))
        for engine, seat in zip(targets, asked.checked(), strict=True):
            if not isinstance(seat, Seat):
                raise GpuMagicError(
                    f"engine {engine} does not answer: {getattr(seat, 'text', '')}",
                    "type %gpu_ranks to see who does, and --on to name them",
                )
            hosts.setdefault((seat.host, seat.machine), []).append(engine)
        return list(hosts.values())

    # ------------------------------------------------------------------- cells

    def _run(self, engines: Engines, options: Options, cell: str) -> RanksReport:
        targets = self._free(engines, options)
        cold = [each for each in targets if each not in self._warm]
        if cold:
            _unless_stopped(self._asked(engines, "warm", cold))
            self._warm |= set(cold)
        self._cells += 1
        asked = self._asked(
            engines,
            "run",
            targets,
            lambda _: {
                "cell": cell,
                "number": running_cell(self._shell),
                "key": f"gpumagic: cell {self._cells} of {self._began_ns}",
                "ranks": len(targets),
                "most_whole": self._most_whole,
            },
            hang_s=options.hang_s,
        )
        self._last = asked
        show_outputs(asked.results)
        first = next((line for line in cell.splitlines() if line.strip()), "")
        return analysis.of_answers(
            asked.checked(), code=first.strip(), with_memory=options.memory
        )

    def _where(self, engines: Engines, options: Options) -> WhereReport:
        if options.on is not None:
            engines.chosen(options.on)
        if self._last is None:
            raise GpuMagicError(
                "nothing has been run on the engines from here",
                "run the cell under %%gpu_ranks: of %%px nobody can be asked",
            )
        hear(self._last, within_s=_FRESH_S)
        return analysis.where_of(self._last.checked())

    # ------------------------------------------------------------------ asking

    def _free(self, engines: Engines, options: Options) -> list[int]:
        """The engines that are meant, unless one of them has something else to do.

        What is asked of it would wait behind that, and nobody could say for how long.
        """
        targets = engines.chosen(options.on)
        busy = engines.busy(targets)
        if busy:
            others = [str(each) for each in engines.chosen(None) if each not in busy]
            use = f"; --on {','.join(others)} uses the others" if others else ""
            deaf = {e for each in self._open if each.interrupted for e in each.running}
            tell = "`%gpu_ranks where` tells what runs"
            if deaf.issuperset(busy) and options.word != GROUP:
                tell = "`%gpu_ranks group` ends what they wait for"
            raise GpuMagicError(
                f"{count_text(len(busy), 'engine')} still busy with what was begun "
                f"before: {listed(list(map(str, busy)))}",
                f"{tell}{use}",
            )
        return targets

    def _asked(  # noqa: PLR0913 -- what is asked, and how long that is waited for
        self,
        engines: Engines,
        kind: str,
        targets: Sequence[int],
        each: Callable[[int], dict[str, Any]] = lambda _: {},
        *,
        hang_s: float = math.inf,
        within_s: float = math.inf,
    ) -> Asked:
        """Ask and wait; a first Ctrl-C is sent on, a second one ends the waiting."""
        asked = engines.request(kind, targets, each)
        try:
            _wait(engines, asked, Panel(self._place, hang_s=hang_s), within_s)
        finally:
            self._keep_open(asked)
        engines.forget(asked)
        return asked

    def _keep_open(self, asked: Asked) -> None:
        """Note what still runs: it can be asked where it is, and be freed."""
        self._open = [each for each in (*self._open, asked) if each.running]
        if asked.running:
            self._last = asked


def _unless_stopped(asked: Asked) -> Asked:
    """What has to be known first: Ctrl-C ends what it is asked for, too."""
    if asked.interrupted:
        raise KeyboardInterrupt
    return asked


def _local_ranks(hosts: Sequence[Sequence[int]]) -> dict[int, int]:
    """The place of each engine on its host, host after host."""
    return {engine: at for each in hosts for at, engine in enumerate(each)}


def _wait(engines: Engines, asked: Asked, panel: Panel, within_s: float) -> None:
    def see() -> None:
        panel.see(asked)

    def see_who_missed_it() -> None:
        panel.see(asked)
        engines.interrupt_late(asked)

    try:
        asked.begin()
        wait_for(asked, each_moment=see, within_s=within_s)
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            engines.interrupt(asked)
            panel.interrupted()
            wait_for(asked, each_moment=see_who_missed_it, within_s=within_s)


def _asker(asked: Asked, engine: int) -> choosing.Asker:
    """What an engine has said of the GPUs that it may have; nothing where it failed."""
    said = asked.said(engine)
    rows = said.get("choices") or ()
    host, machine = str(said.get("host")), said.get("machine")
    return choosing.Asker(
        host,
        (host, machine),
        tuple(choosing.Choice(*row) for row in rows),
        (said.get("gpu") or {}).get("uuid"),
        said.get("launcher"),
    )


def _seats_of(asked: Asked, why_not: str = "refused") -> SeatsReport:
    """A report of the seats, and of who gave none, or did not do what was asked."""
    report = analysis.seats_of(asked.checked())
    refused = tuple(
        Unfinished(asked.names.get(engine, engine), why_not, str(why)[:300])
        for engine in asked.results
        if (why := asked.said(engine).get("refused"))
    )
    return replace(report, unfinished=(*report.unfinished, *refused))
