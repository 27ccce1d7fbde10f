"""What the watchers of a cell have seen, as a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.pin_loader.feeding.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.pin_loader.report import WatchReport
from gpumagic.pin_loader.watched.copy_advice import copy_remarks
from gpumagic.pin_loader.watched.copy_lines import copy_lines
from gpumagic.pin_loader.watched.feeders import Feeders
from gpumagic.pin_loader.watched.loop_waits import (
    is_round,
    loop_waits,
    name_of,
    wait_remarks,
)
from gpumagic.pin_loader.watched.sharing_remarks import sharing_remarks
from gpumagic.report.introspection import is_truly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.pin_loader.records.setting import Setting
    from gpumagic.pin_loader.watched.seen_loaders import SeenLoader
    from gpumagic.pin_loader.watched.watchers import Watchers
    from gpumagic.report.events import Code

_LONG_S = 120.0  # a trace of what takes longer has millions of entries


class Ended(NamedTuple):
    """How the cell has ended.

    Attributes:
        setting: Where it ran.

        elapsed_s: How long, on the clock of the device.

        host_s: How long, on the clock of this machine.

        failed: The error of the code, in one line.
    """

    setting: Setting
    elapsed_s: float
    host_s: float
    failed: str | None = None


class Findings:
    """Everything that does not depend on what the code is called.

    Args:
        watchers: What has looked on; no more of it is needed afterwards.

        names: What the notebook calls its objects.

        only: The name of the one loader whose waits are wanted; None wants all.

        ended: How the cell has ended.
    """

    def __init__(
        self,
        watchers: Watchers,
        names: Mapping[str, object],
        only: str | None,
        ended: Ended,
    ) -> None:
        self._ended = ended
        self._copies = watchers.copies or []
        self._traced = watchers.traced()
        self._untraced = watchers.untraced
        self._races = tuple(watchers.races)
        self._feeders = Feeders(watchers.waits.loaders, names)
        # Names are looked up now: what the cell has made may soon be gone.
        loaders = list(_wanted(watchers.waits.loaders, names, only))
        self._waits = loop_waits(loaders, names)
        self._remarks = (
            *self._about_copies(loaders, names),
            *wait_remarks(loaders, names, host_s=ended.host_s),
            *watchers.remarks,
            *_unseen(only, loaders, watchers.waits.elsewhere),
            *_too_long(ended.host_s, ended.setting.kind),
        )

    def report(self, code: Code) -> WatchReport:
        """All of it.

        Args:
            code: What was watched.
        """
        traced, untraced = self._traced, self._untraced
        return WatchReport(
            code=code,
            setting=self._ended.setting,
            elapsed_s=self._ended.elapsed_s,
            host_s=self._ended.host_s,
            copies=copy_lines(self._copies),
            waits=self._waits,
            copying_s=traced.copying_s if traced else None,
            hidden_s=traced.hidden_s if traced else None,
            kernel_s=traced.kernel_s if traced else None,
            races=self._races,
            failed=self._ended.failed,
            remarks=self._remarks,
            problem=untraced.problem if untraced else None,
            hint=untraced.hint if untraced else None,
        )

    def _about_copies(
        self, loaders: Sequence[SeenLoader], names: Mapping[str, object]
    ) -> Iterator[Remark]:
        yield from copy_remarks(self._copies, self._feeders.of)
        waited_s: float | None = sum(wait.total_s for wait in self._waits)
        if waited_s and self._ended.setting.label:
            waited_s = None  # a simulated device has another clock than its loader
        name = name_of(loaders[0], names) if loaders else None
        yield from sharing_remarks(
            self._copies,
            self._traced,
            elapsed_s=self._ended.elapsed_s,
            waited_s=waited_s,
            name=name,
            copied_ahead=is_truly(names.get(name or ""), DevicePrefetcher),
        )


def _wanted(
    seen: Sequence[SeenLoader], names: Mapping[str, object], only: str | None
) -> Iterator[SeenLoader]:
    first, *attributes = (only or "").split(".")
    wanted = names.get(first)
    for attribute in attributes:
        wanted = getattr(wanted, attribute, None)
    for each in seen:
        loader = each.loader()
        there = loader is not None and (loader is wanted or is_round(wanted, loader))
        if each.waits and (only is None or there):
            yield each


def _unseen(
    only: str | None, loaders: Sequence[SeenLoader], elsewhere: int
) -> Iterator[Remark]:
    if only is not None and not loaders:
        yield Remark(
            f"this cell took no batch out of {only}, or it is no DataLoader of torch, "
            "whose waits could be seen",
            "%%pin_loader --watch without a name shows all that were seen",
        )
    if elsewhere:
        yield Remark(
            f"other threads took {elsewhere} batches out of DataLoaders, which are not "
            "among the waits: they hold no loop"
        )


def _too_long(host_s: float, kind: str) -> Iterator[Remark]:
    if host_s > _LONG_S and kind != "cpu":
        yield Remark(
            "the trace of so long a cell takes much memory and time",
            "watch some hundred steps: itertools.islice(train_dl, 300)",
        )
