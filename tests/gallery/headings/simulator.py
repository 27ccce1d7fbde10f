"""What each sample of the simulated GPU shows."""

from __future__ import annotations

HEADINGS = {
    "four-at-work": "Four simulated GPUs at work, one of them hidden",
    "races": "Data races, each with its remedy",
    "switched-off": "A simulated GPU after it was switched off",
}
