"""Keeps a request over a restart of the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.report import Action

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.gpu_select.answer_gpus import SelectReport
    from gpumagic.gpu_select.request import Request

_LIFETIME_S = 3600.0


def keep(file: Path, key: str, request: Request, report: SelectReport) -> None:
    """Keep a request, with what it has come to, for the next process with this key."""
    uuids = [row.uuid or "" for row in report.mapped("predicted")]
    content = {
        "key": key,
        "text": request.text,
        "meant": (all(uuids) and ",".join(uuids)) or request.text,
        "force": request.force,
        "when": time.time(),
        "process": _this_process(),
    }
    new = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.parent.chmod(0o700)
        _sweep(file.parent)
        new.touch(0o600)
        new.write_text(json.dumps(content), encoding="utf-8")
        new.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise GpuMagicError(
            f"the choice cannot be kept over a restart: {error}",
            f"restart the kernel, then type %gpu_select {request.text} first",
        ) from None


def take(file: Path, key: str, read: Callable[[str], Request]) -> Request | None:
    """What the process before this one has kept, which is used up by it.

    `read` tells what a line of the magic means. What is older than an hour, comes from
    another machine, or cannot be read, is thrown away. What this very process has kept
    stays: there has been no restart yet.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    except (ValueError, RecursionError):
        content = None
    here = _this_process()
    kept = None
    match content:
        case {
            "key": str(own),
            "text": str(text),
            "meant": str(meant),
            "force": bool(force),
            "when": int() | float() as when,
            "process": [host, *_] as process,
        } if own == key:
            if process == here:
                return None
            if host == here[0] and time.time() - when <= _LIFETIME_S:
                with contextlib.suppress(GpuMagicError):
                    again = read(meant)
                    kept = replace(again, text=text, force=force, action=Action.KEPT)
    try:
        file.unlink()
    except OSError:
        return None  # another process was faster, or it would be used twice
    return kept


def _sweep(folder: Path) -> None:
    """Take away what nobody has come for."""
    for old in folder.glob("restart-*"):
        if time.time() - old.stat().st_mtime > _LIFETIME_S:
            old.unlink(missing_ok=True)


def _this_process() -> list[Any]:
    """The machine, the process's number, and when it started: numbers come again."""
    try:
        stat = Path("/proc/self/stat").read_text(errors="replace")
    except OSError:
        return [platform.node(), os.getpid(), None]
    return [platform.node(), os.getpid(), stat.rpartition(")")[2].split()[19]]


def without_keeping(report: SelectReport) -> str:
    """What to type where no request can be kept, a terminal for one."""
    chosen = report.mapped("predicted")
    mask = ",".join(row.uuid or str(row.physical) for row in chosen) or "-1"
    variables = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={shlex.quote(mask)}"
    return f"Nothing is kept here: leave, and start again with {variables} ipython"
