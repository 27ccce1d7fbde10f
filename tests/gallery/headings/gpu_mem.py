"""What each sample of `%gpu_mem` shows."""

from __future__ import annotations

HEADINGS = {
    "balance": "Memory now, and whose names hold it",
    "cell": "What a cell left behind, and its peak",
    "cell-lines": "What each line of the cell took",
    "cell-every-badge": "Every note and warning that there is",
    "cell-hostile": "A cell with names that are made to break a page",
    "brief": "A line after each cell",
    "map": "Where each block lies, and how broken up the free memory is",
    "map-two-devices": "Blocks on two GPUs",
    "leaks": "What is held, and probably not wanted",
    "leaks-grown": "A list that holds more at each look",
    "free": "Memory came back to torch",
    "why-live": "Out of memory: too much was alive",
    "why-fragmented": "Out of memory: enough was free, but not in one piece",
    "why-leaked": "Out of memory: something not wanted was in the way",
    "fit": "It fits into memory that torch has already",
    "fit-nowhere": "It does not fit",
}
