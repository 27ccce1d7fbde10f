"""What each sample of `%tensor_info` shows."""

from __future__ import annotations

HEADINGS = {
    "transposed": "A transposed matrix: the same memory, walked otherwise",
    "slice-with-gaps": "Every second column, with gaps in memory",
    "expanded": "An expanded row: one element under many indices",
    "windows": "Windows that overlap in memory",
    "small-of-big": "A few elements that keep a large storage alive",
    "images-channels-last": "Images, pixel by pixel in memory",
    "parameter-with-values": "A parameter with a NaN and an infinity",
    "simulated": "A tensor on the simulated GPU, with what a warp fetches",
    "sparse": "A sparse tensor, which has no strides",
    "hostile": "Names that are made to break a page",
    "view-fails": "Where .view fails, and which two dims are in the way",
    "compared": "Three tensors over one memory",
    "compared-large": "Two large tensors over one memory",
    "warp-row-and-column": "What a warp fetches by row and by column",
    "aliases": "Which names share memory",
    "model": "A model with two names for one weight, and twelve blocks alike",
    "model-odd": "A model on two devices, with a NaN and a tensor that .to() leaves",
}
