"""What one line of the magic comes to: engines are asked, awaited and shown."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.display import display

from gpumagic.errors import GpuMagicError, UsageProblem, did_you_mean
from gpumagic.gpu_ranks import analysis, answer_seats
from gpumagic.gpu_ranks.answer_where import Panel, where_of
from gpumagic.gpu_ranks.answers import MIME, Seat, Unfinished
from gpumagic.gpu_ranks.engines import (
    Asked,
    Engines,
    client_in,
    hear,
    metadata_of,
    wait_for,
)
from gpumagic.notebook.live import place_in
from gpumagic.report.frontend import running_cell
from gpumagic.report.units import count_text, listed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpumagic.gpu_ranks.answer_seats import SeatsReport
    from gpumagic.gpu_ranks.answer_times import RanksReport
    from gpumagic.gpu_ranks.answer_where import WhereReport
    from gpumagic.notebook.magics import GpuMagics

_WORDS = ("select", "group", "where")
_FRESH_S = 2.5  # within which a rank that runs has said where it is


class Notebook:
    """The cluster of one notebook, and what still runs on it."""

    def __init__(self, magics: GpuMagics) -> None:
        self._magics = magics
        self._shell = magics.shell
        self._place = place_in(self._shell)  # of one line; the next has another
        self._use(None)
        self._cells = 0
        self._began_ns = time.time_ns()  # engines may have heard of other notebooks

    def answer(self, typed: argparse.Namespace, cell: str | None) -> Any:
        """Do what one line asks for."""
        __tracebackhide__ = True
        word = _word_of(typed, above_a_cell=cell is not None)
        self._place = place_in(self._shell)
        try:
            self._find_engines()
            report: SeatsReport | RanksReport | WhereReport
            if word == "where":
                report = self._where()
            elif word:
                change = {"select": self._select, "group": self._group}[word]
                report = change(self._free(typed.on))
            elif cell is None:
                report = self._seats(typed.on)
            else:
                report = self._run(self._free(typed.on), cell, with_memory=typed.mem)
        except BaseException:
            self._place.clear()
            raise
        # What failed on an engine is no report that somebody can do without.
        typed.quiet = typed.quiet and not report.unfinished
        if typed.quiet or typed.json:
            self._place.clear()
        return self._magics.show(report, typed, self._place)

    def _find_engines(self) -> None:
        """Those of the cluster here; what was known of another is forgotten."""
        of_px = self._shell.magics_manager.registry.get("ParallelMagics")
        chosen = getattr(getattr(of_px, "view", None), "client", None)
        client = client_in(self._shell.user_ns, chosen)
        if self._engines.client is not client:
            self._use(client)

    def _use(self, client: Any) -> None:
        self._engines = Engines(client)
        self._last = Asked(lambda _: None, (), {})  # a cell, or what was not waited for
        self._warm: set[int] = set()

    # ------------------------------------------------------------------ seats

    def _seats(self, on: str) -> SeatsReport:
        """Of all that have nothing else to do; the others are named."""
        targets = self._engines.chosen(on)
        busy = self._engines.busy(targets)
        report = _seats_of(self._asked("seat", [e for e in targets if e not in busy]))
        names = self._engines.names
        working = tuple(Unfinished(names.get(e, e), "silent", "busy") for e in busy)
        return replace(report, unfinished=(*report.unfinished, *working))

    def _select(self, targets: Sequence[int]) -> SeatsReport:
        """All or nothing: each engine is asked whether it could before any does."""
        asked = _unless_stopped(self._asked("choices", targets))
        local = _local_ranks(asked)
        askers = {}
        for engine in targets:
            its = asked.said(engine)
            choices = [(number, uuid) for number, uuid in its.get("choices") or ()]
            askers[engine] = (its["host"], its["machine"]), choices
        names = answer_seats.names_of(askers)

        def choice(engine: int) -> dict[str, Any]:
            return {"gpu": names[engine], "local_rank": local[engine]}

        if (report := _seats_of(self._asked("try", targets, choice))).unfinished:
            return report
        chosen = self._asked("choose", targets, choice)
        return replace(_seats_of(chosen), chosen=True)

    def _group(self, targets: Sequence[int]) -> SeatsReport:
        left = _unless_stopped(self._asked("leave", targets))
        stuck = [each for each in targets if left.said(each).get("refused")]
        if stuck:
            raise GpuMagicError(
                f"{count_text(len(stuck), 'engine')} cannot leave the group: "
                f"{listed(list(map(str, stuck)))}",
                self._engines.restart_line(stuck, self._shell.user_ns),
            )
        # Engines come as they come; ranks of one host follow each other, as meshes of
        # devices take for granted.
        local = _local_ranks(left)
        first, *_ = targets = list(local)
        on_one_host = {"one_host": [*local.values()].count(0) == 1}
        asked = _unless_stopped(self._asked("meet", [first], lambda _: on_one_host))
        place = asked.said(first)
        if "port" not in place:
            (why,) = asked.checked()
            raise GpuMagicError(
                f"engine {first} cannot begin a group: {getattr(why, 'text', '')}",
                "pip install gpumagic[torch] where the engines are, or --on others",
            )
        asked = self._asked(
            "join",
            targets,
            lambda engine: {
                "rank": targets.index(engine),
                "world_size": len(targets),
                "local_rank": local[engine],
                "address": place["address"],
                "port": place["port"],
            },
        )
        self._warm |= {e for e in targets if not asked.said(e).get("refused")}
        return _seats_of(asked, "raised")

    # ------------------------------------------------------------------- cells

    def _run(
        self, targets: Sequence[int], cell: str, *, with_memory: bool
    ) -> RanksReport:
        if cold := [each for each in targets if each not in self._warm]:
            _unless_stopped(self._asked("warm", cold))
            self._warm |= set(cold)
        self._cells += 1
        said = {
            "cell": cell,
            "number": running_cell(self._shell),
            "key": f"gpumagic: cell {self._cells} of {self._began_ns}",
            "ranks": len(targets),
        }
        self._last = asked = self._asked("run", targets, lambda _: said)
        _show_outputs(asked.results)
        report = analysis.of_answers(asked.checked(), with_memory=with_memory)
        if not asked.running:
            return report
        restart = self._engines.restart_line(asked.running, self._shell.user_ns)
        return replace(report, restart=restart)

    def _where(self) -> WhereReport:
        if not self._last.results:
            raise GpuMagicError(
                "nothing has been run on the engines from here",
                "run the cell under %%gpu_ranks: of %%px nobody can be asked",
            )
        hear(self._last, within_s=_FRESH_S)
        return where_of(self._last.checked())

    # ------------------------------------------------------------------ asking

    def _free(self, on: str) -> list[int]:
        """The engines that are meant, unless one of them has something else to do.

        What is asked of it would wait behind that, and nobody could say for how long.
        """
        targets = self._engines.chosen(on)
        busy = self._engines.busy(targets)
        if not busy:
            return targets
        hint = "`%gpu_ranks where` tells what runs"
        if others := [e for e in self._engines.chosen("") if e not in busy]:
            hint += f"; --on {','.join(map(str, others))} uses the others"
        deaf = [e for e in self._last.running if e in self._last.interrupted]
        if {*deaf} & {*busy}:
            hint = self._engines.restart_line(deaf, self._shell.user_ns)
        raise GpuMagicError(
            f"{count_text(len(busy), 'engine')} still busy with what was begun "
            f"before: {listed(list(map(str, busy)))}",
            hint,
        )

    def _asked(
        self,
        kind: str,
        targets: Sequence[int],
        each: Callable[[int], dict[str, Any]] = lambda _: {},
    ) -> Asked:
        """Ask and wait; a first Ctrl-C is sent on, a second one ends the waiting."""
        asked, panel = self._engines.request(kind, targets, each), Panel(self._place)
        try:
            try:
                asked.begin()
                wait_for(asked, each_moment=panel.see)
            except KeyboardInterrupt:
                with contextlib.suppress(KeyboardInterrupt):
                    self._engines.interrupt(asked)
                    wait_for(asked, each_moment=panel.see)
        finally:
            if asked.running:  # it can be asked where it is
                self._last = asked
        # ipyparallel keeps all that ever came; what still runs it cannot forget.
        ended = [result for result in asked.results.values() if result.ready()]
        with contextlib.suppress(RuntimeError, ValueError):
            self._engines.client.purge_local_results(ended)
        return asked


def _word_of(typed: argparse.Namespace, *, above_a_cell: bool) -> str:
    """The word that was typed, unless something does not belong to it."""
    word, *more = typed.what or ("",)
    if word and above_a_cell:
        raise UsageProblem(
            f"%%gpu_ranks has no word {word}: it runs the cell below",
            "leave it out; words go with one %, as in %gpu_ranks group",
        )
    if word not in {"", *_WORDS}:
        raise UsageProblem(
            f"%gpu_ranks has no word {word}",
            did_you_mean(word, _WORDS) or "%gpu_ranks? lists the words",
        )
    if more:
        raise UsageProblem(
            f"%gpu_ranks {word}: {more[0]} is one word too many", "leave it out"
        )
    if typed.mem and not above_a_cell:
        raise UsageProblem(
            "%gpu_ranks: --mem has no meaning here",
            "it belongs above a cell: type %%gpu_ranks --mem",
        )
    return str(word)


def _unless_stopped(asked: Asked) -> Asked:
    """What has to be known first: Ctrl-C ends what it is asked for, too."""
    if asked.interrupted:
        raise KeyboardInterrupt
    return asked


def _local_ranks(asked: Asked) -> dict[int, int]:
    """The place of each engine on its host, host after host."""
    hosts: dict[Any, list[int]] = defaultdict(list)
    for engine, seat in zip(asked.results, asked.checked(), strict=True):
        if not isinstance(seat, Seat):
            raise GpuMagicError(
                f"engine {engine} does not answer: {getattr(seat, 'text', '')}",
                "type %gpu_ranks to see who does, and --on to name them",
            )
        hosts[seat.host, seat.machine].append(engine)
    return {engine: at for each in hosts.values() for at, engine in enumerate(each)}


def _seats_of(asked: Asked, why_not: str = "refused") -> SeatsReport:
    """A report of the seats, and of who gave none, or did not do what was asked."""
    report = answer_seats.seats_of(asked.checked())
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
    errors = {engine: each.get("error") for engine, each in metadata.items()}
    _write("error", {e: getattr(its, "traceback", None) for e, its in errors.items()})


def _write(name: str, texts: Mapping[int, Any]) -> None:
    """Each text once, with the engines that it is of."""
    said: dict[str, list[int]] = defaultdict(list)
    for engine, text in texts.items():
        if text and isinstance(text, str):
            said[text].append(engine)
    stream = {"stdout": sys.stdout}.get(name, sys.stderr)
    for text, engines in said.items():
        between = "\n" if "\n" in text.rstrip() else " "
        stream.write(f"[{name}: {_numbers(engines)}]{between}{text.rstrip()}\n")


def _shown(metadata: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """What was displayed, and the value of the last line."""
    for output in (*metadata.get("outputs", ()), metadata.get("execute_result")):
        if output and MIME not in output.get("data", {}):
            yield output.get("data", {}), output.get("metadata", {})


def _numbers(engines: list[int]) -> str:
    """0-3 for many in a row.

    >>> _numbers([0, 1, 2, 3]), _numbers([0, 2])
    ('0-3', '0,2')
    """
    if len(engines) > 2 and engines == list(range(engines[0], engines[-1] + 1)):
        return f"{engines[0]}-{engines[-1]}"
    return ",".join(map(str, engines))
