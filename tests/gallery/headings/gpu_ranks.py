"""What each sample of `%gpu_ranks` shows."""

from __future__ import annotations

HEADINGS = {
    "seats": "Eight ranks on two hosts, each on a GPU of its own",
    "seats-chosen": "Engines that have just been given GPUs",
    "seats-shared": "Two ranks on one GPU",
    "seats-refused": "One engine cannot choose any more, so none has",
    "times-straggler": "One of eight ranks is slow, in backward",
    "times-flags": "The slow rank's GPU clock was held down",
    "times-equal": "Four ranks that take equally long",
    "times-raised": "One rank raised an error",
    "times-died": "One engine died, and the group with it",
    "times-deaf": "Ctrl-C has reached one rank, and not those that wait in gloo",
    "times-1024": "1,024 ranks, one of which is slow",
    "memory-odd": "One rank holds more than the others",
    "where-hang": "Three ranks wait for one that sleeps",
    "where-mismatch": "Ranks that call different collectives",
    "where-hostile": "Names that are made to do harm",
}
