"""Where the figures come from: the device, and the software that drives it."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.report.record import Record


@dataclass(frozen=True)
class Setting(Record):
    """Where it was measured.

    Attributes:
        kind: The word in front of the colon of the torch device: "cuda", "cpu".

        label: What all figures of a simulated machine are labelled with. Times of
            loading and of copies within the host are this machine's even then.

        device: The number of the device that batches go to; None without one.
    """

    kind: str
    label: str = ""
    device: int | None = None
    device_name: str | None = None
    torch_version: str | None = None
    driver_version: str | None = None
