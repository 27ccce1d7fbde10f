"""What one line of the magic comes to: engines are asked, awaited and shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import analysis
from gpumagic.gpu_ranks.engines import Asked, Engines, client_in, wait_for
from gpumagic.gpu_ranks.live import Panel
from gpumagic.gpu_ranks.options import GROUP, SELECT, WHERE, options_of
from gpumagic.gpu_ranks.outputs import show_outputs
from gpumagic.gpu_ranks.records import Seat, Unfinished

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from gpumagic.gpu_ranks.options import Options
    from gpumagic.gpu_ranks.report import RanksReport, SeatsReport, WhereReport
    from gpumagic.notebook.magics import GpuMagics

_EVERY_S = 2.0


class Notebook:
    """The cluster of one notebook, and what still runs on it.

    Args:
        magics: Through which reports are shown.
    """

    def __init__(self, magics: GpuMagics) -> None:
        self._magics = magics
        self._shell = magics.shell
        self._running: Asked | None = None

    def answer(self, typed: argparse.Namespace, cell: str | None) -> Any:
        """Do what one line asks for.

        Args:
            typed: The options.

            cell: The body; None in line form.
        """
        __tracebackhide__ = True
        options = options_of(typed, above_a_cell=cell is not None)
        engines = Engines(client_in(self._shell.user_ns))
        if cell is not None:
            report: Any = self._run(engines, options, cell)
        else:
            words: dict[str, Callable[[Engines, Options], Any]] = {
                "": self._seats,
                SELECT: self._select,
                GROUP: self._group,
                WHERE: self._where,
            }
            report = words[options.word](engines, options)
        return self._magics.show(report, typed)

    # ------------------------------------------------------------------ seats

    def _seats(self, engines: Engines, options: Options) -> SeatsReport:
        asked = self._asked(engines, "seat", options, lambda _: {})
        return _seats_of(asked)

    def _select(self, engines: Engines, options: Options) -> SeatsReport:
        """All or nothing: each engine is asked whether it could before any does."""
        local = self._local_ranks(engines, options)

        def request(engine: int, *, dry_run: bool) -> dict[str, Any]:
            number = local[engine]
            return {"gpu": number, "local_rank": number, "dry_run": dry_run}

        tried = self._asked(
            engines, "choose", options, lambda each: request(each, dry_run=True)
        )
        refused = _refused(tried)
        if refused or options.dry_run:
            return replace(_seats_of(tried, refused=True), chosen=False)
        done = self._asked(
            engines, "choose", options, lambda each: request(each, dry_run=False)
        )
        return replace(_seats_of(done, refused=True), chosen=True)

    def _local_ranks(self, engines: Engines, options: Options) -> Mapping[int, int]:
        """The place of each engine on its host."""
        met: Counter[str] = Counter()
        local = {}
        asked = self._asked(engines, "seat", options, lambda _: {})
        for engine, seat in zip(asked.results, asked.checked(), strict=True):
            if not isinstance(seat, Seat):
                raise GpuMagicError(
                    f"engine {engine} does not answer: {getattr(seat, 'text', '')}",
                    "type %gpu_ranks to see who does",
                )
            local[engine] = met[seat.host]
            met[seat.host] += 1
        return local

    def _group(self, engines: Engines, options: Options) -> SeatsReport:
        local = self._local_ranks(engines, options)
        order = list(local)
        meeting = self._asked(
            engines, "meet", replace(options, on=str(order[0])), lambda _: {}
        ).answers()
        if not meeting or not isinstance(meeting[0], dict) or "port" not in meeting[0]:
            raise GpuMagicError(
                f"engine {order[0]} has no port to meet at", "type %gpu_ranks again"
            )
        place = {"address": meeting[0]["address"], "port": meeting[0]["port"]}
        asked = self._asked(
            engines,
            "join",
            options,
            lambda engine: {
                "rank": order.index(engine),
                "world_size": len(order),
                "local_rank": local[engine],
                "backend": options.backend,
                **place,
            },
        )
        return _seats_of(asked, refused=True)

    # ------------------------------------------------------------------- cells

    def _run(self, engines: Engines, options: Options, cell: str) -> RanksReport:
        targets = engines.chosen(options.on)
        asked = engines.ask(
            "run",
            targets,
            lambda _: {"cell": cell, "names": options.names, "every_s": _EVERY_S},
        )
        self._running = asked
        with Panel(self._shell, hang_s=options.hang_s) as panel:
            self._wait(engines, asked, panel)
        show_outputs(asked.results)
        first = next((line for line in cell.splitlines() if line.strip()), "")
        return analysis.of_answers(
            asked.checked(), code=first.strip(), with_memory=options.memory
        )

    def _wait(self, engines: Engines, asked: Asked, panel: Panel) -> None:
        """Wait; a first Ctrl-C goes to the engines, a second one ends the waiting."""
        try:
            wait_for(asked, each_moment=lambda: panel.see(asked))
        except KeyboardInterrupt:
            engines.interrupt(asked.running)
            panel.interrupted(asked.running)
            try:
                wait_for(asked, each_moment=lambda: panel.see(asked))
            except KeyboardInterrupt:
                asked.given_up = True

    def _where(self, engines: Engines, options: Options) -> WhereReport:
        del engines, options
        if self._running is None:
            raise GpuMagicError(
                "nothing has been run on the engines from here",
                "run the cell under %%gpu_ranks: of %%px nobody can be asked",
            )
        for _ in self._running.news():
            pass
        return analysis.where(self._running.alive())

    def _asked(
        self,
        engines: Engines,
        kind: str,
        options: Options,
        each: Callable[[int], dict[str, Any]],
    ) -> Asked:
        asked = engines.ask(kind, engines.chosen(options.on), each)
        wait_for(asked)
        return asked


def _seats_of(asked: Asked, *, refused: bool = False) -> SeatsReport:
    """A report of the seats, and of who gave none or refused."""
    report = analysis.seats(asked.answers())
    silent = tuple(each for each in asked.checked() if isinstance(each, Unfinished))
    named = {each.name for each in report.unfinished}
    more = tuple(each for each in silent if each.name not in named)
    told = _refused(asked) if refused else ()
    return replace(report, unfinished=(*report.unfinished, *more, *told))


def _refused(asked: Asked) -> tuple[Unfinished, ...]:
    said = (each for each in asked.answers() if isinstance(each, dict))
    return tuple(
        Unfinished(each.get("engine") or 0, "refused", str(each["refused"])[:300])
        for each in said
        if each.get("refused")
    )
