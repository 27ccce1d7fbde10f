"""Is a wait between two streams missing? No time is claimed for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.findings import where_measured
from gpumagic.report.record import Report
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.records import Setting
    from gpumagic.report.events import SeenRace
    from gpumagic.report.places import Code

_MOST = 10
_OF_THE_MODEL = (
    "It notes each byte that torch's operations read and write, and the waits between "
    "streams."
)
_OF_THE_SANITIZER = (
    "It notes the tensors that torch's own operations read and write, by their first "
    "address. It sees no kernels that are launched past torch, and views that begin at "
    "different addresses are different to it. It goes on in this process: restart the "
    "kernel before you time what is very short."
)


@dataclass(frozen=True)
class RaceReport(Report):
    """A cell that was run to find missing waits."""

    code: Code
    setting: Setting
    races: tuple[SeenRace, ...]
    # what looked: "torch's sanitizer", "the simulated GPU"; empty where nothing could
    # be looked at
    watcher: str
    failed: str | None = None

    @property
    def headline(self) -> str:
        """How many and where, or that nothing could be found out."""
        name = f"{self.code.name}: " if self.code.name else ""
        if not self.watcher:
            return f"{name}races could not be looked for"
        if self.races:
            line = self.races[0].later or self.races[0].earlier
            where = "" if line is None else f", the first at {line.where}"
            found = count_text(len(self.races), "race")
            return f"{name}{found} found{where}: its result may differ each time"
        if self.failed is not None:
            return f"{name}no race was seen until it failed ({self.failed})"
        return f"{name}no race was seen in this run"

    def drawing(self) -> Any:
        """Each race with both its lines, then the limits of looking."""
        from gpumagic.drawing import Drawing, one_screen

        return Drawing(self.headline, one_screen(_parts(self)), self.setting.label)


def _parts(report: RaceReport) -> Iterator[Any]:
    from gpumagic.drawing import Column, Grid, Note, Paragraph, Table, how_measured

    if not report.watcher:
        yield Note(
            "warning",
            "on the CPU one call is done before the next begins: nothing can race",
            'gpumagic.simulate("h100") gives streams that can; its device is "sim"',
        )
        return
    shown = report.races[:_MOST]
    if report.failed is not None and shown:
        yield Note("problem", f"the code failed: {report.failed}")
    for race in shown:
        yield Note("problem", race.problem, race.hint)
    rows = [
        (f"{number}", access, line.where, line.source)
        for number, race in enumerate(shown, 1)
        for access, line in (("first", race.earlier), ("then", race.later))
        if line is not None
    ]
    if rows:
        columns = Column("Race", number=True), Column("Access"), Column("Line")
        yield Table("The lines", (*columns, Column("Code")), tuple(rows), name="lines")
    if more := len(report.races) - len(shown):
        yield Paragraph(f"... and {more:,} more")
    sees = _OF_THE_MODEL if report.setting.label else _OF_THE_SANITIZER
    yield how_measured(
        Paragraph(
            f"Watched by {report.watcher}. {sees} It judges this run only: another "
            "input may take another way. Every access was noted, so no time is claimed."
        ),
        Grid("", tuple(where_measured(report.setting).items())),
    )
