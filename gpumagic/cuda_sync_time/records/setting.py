"""Where it was measured."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.report.record import Record


@dataclass(frozen=True)
class Setting(Record):
    """Where it was measured.

    Attributes:
        kind: The word in front of the colon of the torch device, as the user's code
            has it: "cuda", "cpu". So it is where a simulated GPU stands in for CUDA.

        label: What all figures of a simulated machine are labelled with.

        devices: Those in use at the end, by number, and what the maker calls them.

        floor_s: What an empty cell is measured as, here and now. Nothing is
            subtracted for it.
    """

    kind: str
    label: str = ""
    devices: tuple[tuple[int, str | None], ...] = ()
    floor_s: float | None = None
    torch_version: str | None = None
    driver_version: str | None = None
