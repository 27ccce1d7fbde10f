"""How one run was measured: each figure, the machine, and what they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import floor_text, measured, nearly_same, times_text
from gpumagic.cuda_sync_time.report import FlagKind
from gpumagic.cuda_sync_time.view_busy import done_alike
from gpumagic.cuda_sync_time.view_flags import MOST_NAMES, notes
from gpumagic.report.units import UNKNOWN, devices_text, listed, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.report import Setting, TimingReport
    from gpumagic.drawing import Cell

# Told here alone: whoever asked for it knows that it was on.
OF_LOOKING = (FlagKind.PROFILED, FlagKind.WATCHED, FlagKind.LINES)
_FEW = 2  # devices, each of which is told by itself


def facts(report: TimingReport) -> Iterator[tuple[str, Cell]]:
    """Each figure, and where and with what it was taken."""
    run, setting = report.run, report.setting
    floor_s = setting.floor_s
    if run.uses_device:
        yield "measured", "from all devices idle to all devices idle, by the host"
        yield "time", measured(run.elapsed_s, floor_s)
        yield "until the code returned", _until_returned(report)
        yield "wait after that", measured(run.waited_s, floor_s)
        yield "of that, for other streams", _or_unknown(run.tail_s, floor_s)
        yield "earlier work, not counted", _or_unknown(run.backlog_s, floor_s)
    else:
        yield "measured", "from the first line to the last, by the host's clock"
    for numbers, done_s in done_alike(report):
        if run.uses_device and numbers:
            where = devices_text(setting.kind, numbers)
            yield f"{where}, by events", _by_events(done_s, floor_s)
    yield "an empty cell (the floor)", _floor(setting)
    if run.simulated_in_s is not None:
        took = seconds_text(run.simulated_in_s)
        yield "simulated in", f"{took} of this machine's own time"
    yield from setting_facts(setting)


def remarks(report: TimingReport, *, drawn: bool) -> Iterator[str]:
    """What has to be known of the figures."""
    looked = [flag for flag in report.flags if flag.kind in OF_LOOKING]
    if report.setting.floor_s is not None:
        yield "The floor is not subtracted, and no figure is finer than a tenth of it."
    for note in notes(looked, report.setting):
        yield f"{note.text[:1].upper()}{note.text[1:]}: {note.hint}."
    if report.setting.label:
        yield "The clock is that of the model: Python's own time is not on it."
    if drawn and report.run.uses_device and report.busy_s is None:
        yield (
            "Where the GPU is perhaps busy, only a trace knows: --profile takes one. "
            "Without it, copies are drawn as kernels."
        )


def _until_returned(report: TimingReport) -> str:
    run, floor_s = report.run, report.setting.floor_s
    said = f"{measured(run.naive_s, floor_s)}, as %%time would say"
    ratio = run.too_little
    if ratio is None or nearly_same(ratio) or not report.tells(run.waited_s):
        return said
    if report.tells(run.naive_s):
        return f"{said}: {times_text(ratio)} times too little"
    least = run.elapsed_s / floor_s if floor_s else 0.0
    return (
        f"{said}: more than {times_text(least)} times too little" if least > 1 else said
    )


def _floor(setting: Setting) -> str:
    return UNKNOWN if setting.floor_s is None else floor_text(setting.floor_s)


def setting_facts(setting: Setting) -> Iterator[tuple[str, Cell]]:
    """The machine and the versions, as far as they are known."""
    if setting.devices:
        yield "devices in use", listed(_models(setting), ", ", MOST_NAMES)
    if setting.torch_version:
        yield "torch", setting.torch_version
    if setting.driver_version:
        yield "driver", setting.driver_version


def _models(setting: Setting) -> tuple[str, ...]:
    """Each device with its model; many of one model together."""
    of_model: dict[str, list[int]] = {}
    for number, name in setting.devices:
        key = name or "" if len(setting.devices) > _FEW else f"{number}"
        of_model.setdefault(key, []).append(number)
    names = dict(setting.devices)
    return tuple(
        f"{devices_text(setting.kind, its)} {names[its[0]] or ''}".strip()
        for its in of_model.values()
    )


def _by_events(done_s: float | None, floor_s: float | None) -> str | None:
    """What a pair of events shows, which looks at one stream only."""
    shown = _or_unknown(done_s, floor_s)
    return None if shown is None else f"{shown}, on the stream that the cell began on"


def _or_unknown(seconds: float | None, floor_s: float | None) -> str | None:
    """None is told as unknown, and no time at all as none."""
    if seconds is None:
        return None
    return measured(seconds, floor_s) if seconds > 0 else "none"
