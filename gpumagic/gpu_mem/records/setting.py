"""Where it was looked."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.report.record import Record


@dataclass(frozen=True)
class Setting(Record):
    """Where it was looked.

    Attributes:
        kind: The word in front of the colon of the torch device, as the user's code
            has it: "cuda", "cpu". So it is where a simulated GPU stands in for CUDA.

        label: What all figures of a simulated machine are labelled with.

        backend: Which allocator torch uses: "native", "cudaMallocAsync", another;
            None where that is unknown or there is no choice.
    """

    kind: str
    label: str = ""
    backend: str | None = None
