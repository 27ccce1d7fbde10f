"""Choosing free GPUs in a test, with chance under control."""

import pytest

from gpumagic.gpu_select.choice import NotEnough
from gpumagic.gpu_select.free_gpus import freest
from gpumagic.gpu_select.request import read

MINE = 4242


def choose(inventory, *, allowed=None, claimed=None, pick=min, **options):
    """The choice of free GPUs; of equals the one that `pick` finds by number."""
    return freest(
        read("free", **options),
        inventory,
        allowed=allowed,
        claimed=claimed or {},
        is_mine=lambda pid: pid == MINE,
        pick=lambda equals: pick(equals, key=lambda place: place.gpu.index),
    )


def refusal(inventory, **options):
    """The error of a choice that finds too few."""
    with pytest.raises(NotEnough) as caught:
        choose(inventory, **options)
    return caught.value


def numbers(choice):
    """The chosen GPUs by number, in order."""
    return [place.gpu.index for place in choice.places]


def said(opinions):
    """What is said of each GPU, by number."""
    return {each.place.gpu.index: each.why for each in opinions}
