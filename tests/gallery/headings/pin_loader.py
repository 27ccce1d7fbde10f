"""What each sample of `%pin_loader` shows."""

from __future__ import annotations

HEADINGS = {
    "fixed": "A loader that feeds the GPU 1.84 times as fast",
    "fixed-workers": "As many workers as pay, pinned and copied ahead",
    "fixed-hostile": "Names that are made to break a page",
    "unproven": "Too few runs to tell how much faster it is",
    "no-difference": "No difference that was measured",
    "diagnosed": "Pageable batches, and what pinning can give at most",
    "diagnosed-more-workers": "A dataset that waits: many more workers",
    "nothing": "Nothing to win: compute is the limit",
    "refused-different": "Refused: the rebuilt loader gave other batches",
    "cpu": "No GPU: how many workers pay",
    "watch": "A training cell that waits for data and copies pageable batches",
    "watch-many": "Many loaders and many copies",
}
