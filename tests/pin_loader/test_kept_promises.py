"""What the bound of a loop promises: a stand-in decides nothing."""

from __future__ import annotations

import pytest

from gpumagic.pin_loader.bound import bound_of
from gpumagic.pin_loader.report import CopyMode, Loading, Part, Rates, Samples, Step


@pytest.mark.parametrize(
    ("synthetic", "binding"), [(True, Part.LOAD), (False, Part.STEP)]
)
def test_a_stand_in_for_compute_never_binds(synthetic, binding):
    """A synthetic step that came out longer than meant is not what slows the loop."""
    copied = Samples((0.001,) * 3)
    rates = Rates(
        load=Loading(Samples((0.010,) * 3), workers=2),
        pin_copy=copied,
        copies=(
            CopyMode(False, True, copied, copied),
            CopyMode(True, True, copied, copied),
            CopyMode(True, False, copied, copied),
        ),
        step=Step("step", Samples((0.012,) * 3), synthetic=synthetic),
    )

    assert bound_of(rates, pinned=False, workers=2).binding is binding
