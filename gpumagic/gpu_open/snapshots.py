"""One memory snapshot, or two, and what is asked of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.fit import would_fit
from gpumagic.gpu_open.growth import grown
from gpumagic.gpu_open.many import folder_of
from gpumagic.gpu_open.memory_history import device_of
from gpumagic.gpu_open.memory_records import AllocatorSetting
from gpumagic.gpu_open.replay import replays
from gpumagic.gpu_open.report import SnapshotReport
from gpumagic.gpu_open.snapshot_file import read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpumagic.gpu_open.memory_records import SnapshotOfDevice
    from gpumagic.gpu_open.options import Options

_MOST = 2
# What helps most often; each is the text that PYTORCH_CUDA_ALLOC_CONF would have.
_USUAL = ("expandable_segments:True",)
_WHERE_IT_FAILED = ("max_split_size_mb:256", "garbage_collection_threshold:0.8")


def opened(
    files: Sequence[Path], options: Options, progress: Callable[[float], object]
) -> SnapshotReport:
    """What a snapshot holds; of two, what grew."""
    if len(files) > _MOST:
        raise GpuMagicError(
            f"{len(files)} memory snapshots are too many at once",
            f"open one, or two to see what grew: %gpu_open {files[0]} {files[-1]}",
        )
    snapshots = []
    for number, file in enumerate(files, 1):
        snapshots.append(read(file))
        progress(number / (len(files) + 1))
    last = snapshots[-1]
    devices = tuple(device_of(last, device) for device in last.devices)
    return SnapshotReport(
        files=tuple(
            replace(each.file, folder=folder_of(file))
            for each, file in zip(snapshots, files, strict=True)
        ),
        devices=devices,
        settings=last.settings,
        grown=grown(*snapshots) if len(snapshots) == _MOST else None,
        replays=tuple(
            replays(last, each.device, _settings(each, options)) for each in devices
        )
        if options.replay
        else (),
        would_fit=tuple(
            would_fit(each, options.fit_bytes, options.memory_bytes) for each in devices
        )
        if options.fit_bytes is not None
        else (),
    )


def _settings(device: SnapshotOfDevice, options: Options) -> list[AllocatorSetting]:
    """Under what it is replayed, beside the setting of the recording."""
    usual = _USUAL if device.failure is None else (*_USUAL, *_WHERE_IT_FAILED)
    texts = options.settings or usual
    return [AllocatorSetting(each, options.memory_bytes) for each in texts]
