"""What each sample of `%pin_loader` shows."""

from __future__ import annotations

HEADINGS = {
    "fixed": "A loader that feeds the GPU 1.84 times as fast",
    "fixed-workers": "As many workers as pay, pinned and copied ahead",
    "fixed-stand-in": "Measured with a stand-in for your step, on the simulated GPU",
    "fixed-hostile": "Names that are made to break a page",
    "unproven": "Too few runs to tell how much faster it is",
    "no-difference": "No difference that was measured",
    "diagnosed": "Pageable batches, and what pinning can give at most",
    "diagnosed-more-workers": "A dataset that waits: many more workers",
    "diagnosed-no-workers": "A fast dataset: none at all",
    "diagnosed-not-started": "The GPU is not in use yet, so nothing was copied",
    "nothing": "Nothing to win: compute is the limit",
    "as-it-is": "A loader that stays as it is",
    "refused-ram": "Refused: too little memory is left",
    "refused-doubled": "Each record comes twice",
    "refused-different": "Refused: the rebuilt loader gave other batches",
    "cpu": "No GPU: how many workers pay",
    "watch": "A training cell that waits for data and copies pageable batches",
    "watch-races": "A training cell with a race",
    "watch-many": "Many loaders and many copies",
    "watch-hostile": "A training cell with names that are made to break a page",
}
