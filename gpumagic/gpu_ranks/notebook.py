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
from gpumagic.gpu_ranks.engines import Engines, client_in, hear, wait_for
from gpumagic.gpu_ranks.live import Panel
from gpumagic.gpu_ranks.options import GROUP, SELECT, WHERE, options_of
from gpumagic.gpu_ranks.outputs import show_outputs
from gpumagic.gpu_ranks.records import Seat, Unfinished
from gpumagic.notebook.live import place_in
from gpumagic.report.units import count_text, listed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from gpumagic.gpu_ranks.engines import Asked
    from gpumagic.gpu_ranks.options import Options
    from gpumagic.gpu_ranks.report import RanksReport, SeatsReport, WhereReport
    from gpumagic.notebook.magics import GpuMagics

_LEAVING_S, _PAUSE_S = 10.0, 0.05
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
        self._warm: set[int] = set()
        self._cells = 0
        self._began_ns = time.time_ns()  # engines may have heard of other notebooks
        self._most_whole = analysis.MOST_TOLD  # ranks; of more each sends its sums

    def answer(self, typed: argparse.Namespace, cell: str | None) -> Any:
        """Do what one line asks for.

        Args:
            typed: The options.

            cell: The body; None in line form.
        """
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
        """Those of the newest client; what was known of another is forgotten."""
        client = client_in(self._shell.user_ns)
        if self._engines is None or self._engines.client is not client:
            self._engines = Engines(client)
            self._last, self._warm = None, set()
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
        asked = self._asked(engines, "choices", targets)
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

    def _leave(self, engines: Engines, stuck: Asked) -> None:
        """Let all that can leave a group in which ranks wait that do not hear Ctrl-C.

        Those are told of it, one after another, and can leave as well.
        """
        until_s, gone = time.monotonic() + _LEAVING_S, set[int]()
        while stuck.running and time.monotonic() < until_s:
            here = {*stuck.results} - {*stuck.running} - gone
            free = sorted(here - {*engines.busy(sorted(here))}) if here else []
            if free:
                self._asked(engines, "leave", free)
                gone.update(free)
                until_s = time.monotonic() + _LEAVING_S
            time.sleep(_PAUSE_S)
        if stuck.running:
            left = listed(list(map(str, stuck.running)))
            raise GpuMagicError(
                f"engines that wait in the group cannot be freed: {left}",
                "another rank still holds it, as a model under DDP does: restart these",
            )

    def _group(self, engines: Engines, options: Options) -> SeatsReport:
        if self._last is not None and self._last.interrupted:
            self._leave(engines, self._last)
        hosts = self._by_host(engines, self._free(engines, options))
        local = _local_ranks(hosts)
        # Engines come as they come; ranks of one host follow each other, as meshes of
        # devices take for granted.
        targets, one_host = list(local), len(hosts) == 1
        first = targets[0]
        meeting = self._asked(
            engines, "meet", [first], lambda _: {"one_host": one_host}
        )
        place = meeting.said(first)
        if "port" not in place:
            (why,) = meeting.checked()
            raise GpuMagicError(
                f"engine {first} cannot begin a group: {getattr(why, 'text', '')}",
                "pip install gpumagic[torch] where the engines are, or --on others",
            )
        address = self._reached(engines, targets, place)
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

    def _reached(
        self, engines: Engines, targets: Sequence[int], place: Mapping[str, Any]
    ) -> str:
        """The first address of rank 0 that all get through to."""
        addresses, port = place["addresses"], place["port"]
        if len(addresses) == 1:
            return str(addresses[0])
        others = targets[1:]
        tried = self._asked(
            engines, "reach", others, lambda _: {"addresses": addresses, "port": port}
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
        asked = self._asked(engines, "seat", targets)
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
            self._asked(engines, "warm", cold)
            self._warm |= set(cold)
        self._cells += 1
        asked = self._asked(
            engines,
            "run",
            targets,
            lambda _: {
                "cell": cell,
                "names": options.names,
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
            raise GpuMagicError(
                f"{count_text(len(busy), 'engine')} still busy with what was begun "
                f"before: {listed(list(map(str, busy)))}",
                f"%gpu_ranks where tells what runs{use}",
            )
        return targets

    def _asked(
        self,
        engines: Engines,
        kind: str,
        targets: Sequence[int],
        each: Callable[[int], dict[str, Any]] = lambda _: {},
        *,
        hang_s: float = math.inf,
    ) -> Asked:
        """Ask and wait; a first Ctrl-C is sent on, a second one ends the waiting."""
        asked = engines.ask(kind, targets, each)
        try:
            _wait(engines, asked, Panel(self._place, hang_s=hang_s))
        finally:
            if asked.running:
                self._last = asked
        engines.forget(asked)
        return asked


def _local_ranks(hosts: Sequence[Sequence[int]]) -> dict[int, int]:
    """The place of each engine on its host, host after host."""
    return {engine: at for each in hosts for at, engine in enumerate(each)}


def _wait(engines: Engines, asked: Asked, panel: Panel) -> None:
    try:
        wait_for(asked, each_moment=lambda: panel.see(asked))
    except KeyboardInterrupt:
        engines.interrupt(asked)
        panel.interrupted()
        with contextlib.suppress(KeyboardInterrupt):
            wait_for(asked, each_moment=lambda: panel.see(asked))


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
