"""What one line of the magic comes to: engines are asked, awaited and shown."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.display import display

from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError, UsageProblem, did_you_mean
from gpumagic.gpu_ranks import analysis, choosing
from gpumagic.gpu_ranks.answer_seats import seats_of
from gpumagic.gpu_ranks.answer_where import where_of
from gpumagic.gpu_ranks.answers import MIME, Seat, Unfinished
from gpumagic.gpu_ranks.engines import Engines, client_in, hear, metadata_of, wait_for
from gpumagic.gpu_ranks.live import Panel
from gpumagic.notebook.live import place_in
from gpumagic.report.frontend import running_cell
from gpumagic.report.units import count_text, listed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpumagic.gpu_ranks.answer_seats import SeatsReport
    from gpumagic.gpu_ranks.answer_times import RanksReport
    from gpumagic.gpu_ranks.answer_where import WhereReport
    from gpumagic.gpu_ranks.engines import Asked
    from gpumagic.notebook.magics import GpuMagics

SELECT, GROUP, WHERE = "select", "group", "where"
_WORDS = (SELECT, GROUP, WHERE)
_HANG_S = 5.0  # how long a collective may stay open until it is told
_LEAVING_S = 20.0  # an engine itself gives up before
_FRESH_S = 2.5  # within which a rank that runs has said where it is


class Notebook:
    """The cluster of one notebook, and what still runs on it."""

    def __init__(self, magics: GpuMagics) -> None:
        self._magics = magics
        self._shell = magics.shell
        self._place = place_in(self._shell)  # of one line; the next has another
        self._engines: Engines | None = None
        self._last: Asked | None = None  # a cell, or what was not waited for
        self._warm: set[int] = set()
        self._cells = 0
        self._began_ns = time.time_ns()  # engines may have heard of other notebooks

    def answer(self, typed: argparse.Namespace, cell: str | None) -> Any:
        """Do what one line asks for."""
        __tracebackhide__ = True
        word = _word_of(typed, above_a_cell=cell is not None)
        self._place = place_in(self._shell)
        try:
            engines = self._engines_here()
            report: SeatsReport | RanksReport | WhereReport
            if cell is not None:
                report = self._run(engines, typed, cell)
            elif word == WHERE:
                report = self._where()
            else:
                seats = {"": self._seats, SELECT: self._select, GROUP: self._group}
                report = seats[word](engines, typed)
        except BaseException:
            self._place.clear()
            raise
        # What failed on an engine is no report that somebody can do without.
        typed.quiet = typed.quiet and not report.unfinished
        if typed.quiet or typed.json:
            self._place.clear()
        return self._magics.show(report, typed, self._place)

    def _engines_here(self) -> Engines:
        """Those of the cluster here; what was known of another is forgotten."""
        of_px = self._shell.magics_manager.registry.get("ParallelMagics")
        chosen = getattr(getattr(of_px, "view", None), "client", None)
        client = client_in(self._shell.user_ns, chosen)
        if self._engines is None or self._engines.client is not client:
            self._engines = Engines(client)
            self._last, self._warm = None, set()
        return self._engines

    # ------------------------------------------------------------------ seats

    def _seats(self, engines: Engines, typed: argparse.Namespace) -> SeatsReport:
        """Of all that have nothing else to do; the others are named."""
        targets = engines.chosen(typed.on)
        busy = engines.busy(targets)
        asked = self._asked(engines, "seat", [e for e in targets if e not in busy])
        working = tuple(
            Unfinished(engines.names.get(e, e), "silent", "busy") for e in busy
        )
        report = _seats_of(asked)
        return replace(report, unfinished=(*report.unfinished, *working))

    def _select(self, engines: Engines, typed: argparse.Namespace) -> SeatsReport:
        """All or nothing: each engine is asked whether it could before any does."""
        targets = self._free(engines, typed)
        local = _local_ranks(self._by_host(engines, targets))
        asked = _unless_stopped(self._asked(engines, "choices", targets))
        askers = {engine: _asker(asked, engine) for engine in targets}
        box = simulated_box()
        if box is not None and not any(each.choices for each in askers.values()):
            raise GpuMagicError(
                "the engines have no GPU: it is this notebook alone that simulates one",
                f"%px import gpumagic; {box.call()}",
            )
        names = choosing.names_of(askers)

        def choice(engine: int) -> dict[str, Any]:
            return {"gpu": names[engine], "local_rank": local[engine]}

        tried = self._asked(engines, "try", targets, choice)
        if (report := _seats_of(tried)).unfinished:
            return report
        asked = self._asked(engines, "choose", targets, choice)
        return replace(_seats_of(asked), chosen=True)

    def _group(self, engines: Engines, typed: argparse.Namespace) -> SeatsReport:
        hosts = self._by_host(engines, self._free(engines, typed))
        local = _local_ranks(hosts)
        # Engines come as they come; ranks of one host follow each other, as meshes of
        # devices take for granted.
        targets, one_host = list(local), len(hosts) == 1
        left = self._asked(engines, "leave", targets, within_s=_LEAVING_S)
        _unless_stopped(left)
        stuck = [e for e in targets if left.said(e).get("refused") or e in left.running]
        if stuck:
            raise GpuMagicError(
                f"{count_text(len(stuck), 'engine')} cannot leave the group: "
                f"{listed(list(map(str, stuck)))}",
                engines.restart_line(stuck, self._shell.user_ns),
            )
        first = targets[0]
        place = _unless_stopped(
            self._asked(engines, "meet", [first], lambda _: {"one_host": one_host})
        )
        if "port" not in place.said(first):
            (why,) = place.checked()
            raise GpuMagicError(
                f"engine {first} cannot begin a group: {getattr(why, 'text', '')}",
                "pip install gpumagic[torch] where the engines are, or --on others",
            )
        asked = self._asked(
            engines,
            "join",
            targets,
            lambda engine: {
                "rank": targets.index(engine),
                "world_size": len(targets),
                "local_rank": local[engine],
                "backend": typed.backend,
                "address": place.said(first)["address"],
                "port": place.said(first)["port"],
            },
        )
        self._warm |= {e for e in targets if not asked.said(e).get("refused")}
        return _seats_of(asked, "raised")

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

    def _run(
        self, engines: Engines, typed: argparse.Namespace, cell: str
    ) -> RanksReport:
        targets = self._free(engines, typed)
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
            },
            hang_s=_HANG_S,
        )
        self._last = asked
        _show_outputs(asked.results)
        report = analysis.of_answers(asked.checked(), with_memory=typed.mem)
        if not asked.running:
            return report
        restart = engines.restart_line(asked.running, self._shell.user_ns)
        return replace(report, restart=restart)

    def _where(self) -> WhereReport:
        if self._last is None:
            raise GpuMagicError(
                "nothing has been run on the engines from here",
                "run the cell under %%gpu_ranks: of %%px nobody can be asked",
            )
        hear(self._last, within_s=_FRESH_S)
        return where_of(self._last.checked())

    # ------------------------------------------------------------------ asking

    def _free(self, engines: Engines, typed: argparse.Namespace) -> list[int]:
        """The engines that are meant, unless one of them has something else to do.

        What is asked of it would wait behind that, and nobody could say for how long.
        """
        targets = engines.chosen(typed.on)
        busy = engines.busy(targets)
        if busy:
            others = [str(each) for each in engines.chosen(None) if each not in busy]
            use = f"; --on {','.join(others)} uses the others" if others else ""
            hint = f"`%gpu_ranks where` tells what runs{use}"
            deaf = self._last.running if self._last and self._last.interrupted else []
            if {*deaf} & {*busy}:
                hint = engines.restart_line(deaf, self._shell.user_ns)
            raise GpuMagicError(
                f"{count_text(len(busy), 'engine')} still busy with what was begun "
                f"before: {listed(list(map(str, busy)))}",
                hint,
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
            if asked.running:  # it can be asked where it is
                self._last = asked
        engines.forget(asked)
        return asked


def _word_of(typed: argparse.Namespace, *, above_a_cell: bool) -> str:
    """The word that was typed, unless something does not belong to it."""
    word, *more = typed.what or ("",)
    sign = "%%" if above_a_cell else "%"
    here = f"{sign}gpu_ranks {word}".rstrip()
    if word and (above_a_cell or word not in _WORDS):
        raise UsageProblem(
            f"{sign}gpu_ranks has no word {word}",
            did_you_mean(word, _WORDS) or "%gpu_ranks? lists the words",
        )
    if more:
        raise UsageProblem(f"{here}: {more[0]} is one word too many", "leave it out")
    for option, place in (("mem", "%%gpu_ranks"), ("backend", "%gpu_ranks group")):
        if getattr(typed, option) and here != place:
            raise UsageProblem(
                f"%gpu_ranks: --{option} has no meaning here",
                f"it belongs to {place}: type {place} --{option}",
            )
    return str(word)


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

    try:
        asked.begin()
        wait_for(asked, each_moment=see, within_s=within_s)
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            engines.interrupt(asked)
            panel.interrupted()
            wait_for(asked, each_moment=see, within_s=within_s)


def _asker(asked: Asked, engine: int) -> choosing.Asker:
    """What an engine has said of the GPUs that it may have; nothing where it failed."""
    said = asked.said(engine)
    rows = said.get("choices") or ()
    host, machine = str(said.get("host")), said.get("machine")
    choices = tuple(choosing.Choice(*row) for row in rows)
    return choosing.Asker(host, (host, machine), choices)


def _seats_of(asked: Asked, why_not: str = "refused") -> SeatsReport:
    """A report of the seats, and of who gave none, or did not do what was asked."""
    report = seats_of(asked.checked())
    refused = tuple(
        Unfinished(asked.names.get(engine, engine), why_not, str(why)[:300])
        for engine in asked.results
        if (why := asked.said(engine).get("refused"))
    )
    return replace(report, unfinished=(*report.unfinished, *refused))


# -------------------------------------------------- what a cell has printed and drawn


def _show_outputs(results: Mapping[int, Any]) -> None:
    """Show texts by engine, then what is more than text, then errors."""
    metadata = {engine: metadata_of(result) for engine, result in results.items()}
    for name in ("stdout", "stderr"):
        _write(name, {engine: each.get(name) for engine, each in metadata.items()})
    for engine, each in metadata.items():
        for data, more in _shown(each):
            display({"text/plain": f"[output: {engine}]"}, raw=True)
            display(data, raw=True, metadata=more)
    _write("error", {engine: _traceback(each) for engine, each in metadata.items()})


def _write(name: str, texts: Mapping[int, str | None]) -> None:
    """Each text once, with the engines that it is of."""
    said: dict[str, list[int]] = {}
    for engine, text in texts.items():
        if text:
            said.setdefault(text, []).append(engine)
    stream = sys.stdout if name == "stdout" else sys.stderr
    for text, engines in said.items():
        between = "\n" if "\n" in text.rstrip() else " "
        stream.write(f"[{name}: {_numbers(engines)}]{between}{text.rstrip()}\n")


def _shown(metadata: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """What was displayed, and the value of the last line."""
    for output in (*metadata.get("outputs", ()), metadata.get("execute_result")):
        if output and MIME not in output.get("data", {}):
            yield output.get("data", {}), output.get("metadata", {})


def _traceback(metadata: Mapping[str, Any]) -> str | None:
    """Of the error that the cell ended with, as the engine's shell has drawn it."""
    said = getattr(metadata.get("error"), "traceback", None)
    return said if isinstance(said, str) else None


def _numbers(engines: list[int]) -> str:
    """0-3 for many in a row.

    >>> _numbers([0, 1, 2, 3]), _numbers([0, 2])
    ('0-3', '0,2')
    """
    if len(engines) > 2 and engines == list(range(engines[0], engines[-1] + 1)):
        return f"{engines[0]}-{engines[-1]}"
    return ",".join(map(str, engines))
