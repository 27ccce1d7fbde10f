"""What each sample of `%pin_loader` shows."""

from __future__ import annotations

HEADINGS = {
    "fixed": "A loader that feeds the GPU 1.84 times as fast",
    "diagnosed": "Pageable batches, and what pinning can give at most",
    "diagnosed-more-workers": "A dataset that waits: many more workers",
    "diagnosed-short-epochs": "Short epochs: most of a start of workers is wasted",
    "nothing": "Nothing to win: compute is the limit",
    "refused-different": "Refused: the rebuilt loader gave other batches",
    "watch": "A training cell that waits for data and copies pageable batches",
}
