"""What the stages of an investigation decide."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.pin_loader.report import Anatomy, Pinned, WhyPageable
from gpumagic.pin_loader.stages import _is_pinned
from tests.pin_loader.samples import IMAGES, LABELS, leaf

IMAGE = leaf("batch[0]", IMAGES, Pinned.PINNED)


@pytest.mark.parametrize(
    ("nbytes", "why", "is_pinned"),
    [
        (LABELS, WhyPageable.PASSED_THROUGH, True),  # hardly any
        (IMAGES, WhyPageable.PASSED_THROUGH, False),
        (IMAGES, WhyPageable.NOT_A_TENSOR, True),
        (IMAGES, WhyPageable.NOT_DENSE, True),
        (IMAGES, WhyPageable.OWN_METHOD, True),
    ],
)
def test_what_never_is_pinned_does_not_count(nbytes, why, is_pinned):
    """Batches are pinned already where all that can be is, but for hardly any bytes."""
    anatomy = Anatomy("list", (IMAGE, leaf("batch[1]", nbytes, why=why)))

    assert _is_pinned(SimpleNamespace(anatomy=anatomy)) is is_pinned


def test_a_batch_of_which_nothing_is_pinned_is_not_pinned():
    """Also where nothing of it ever is."""
    never = leaf("batch", IMAGES, why=WhyPageable.NOT_A_TENSOR)

    assert not _is_pinned(SimpleNamespace(anatomy=Anatomy("Tensor", (never,))))
