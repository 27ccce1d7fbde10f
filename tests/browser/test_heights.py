"""An answer is one screen high, also in a notebook."""

from __future__ import annotations

import pytest

from tests.gallery.heights import MOST, heights
from tests.gallery.samples import views

pytestmark = pytest.mark.browser


def test_an_answer_fits_one_screen_of_a_notebook(browser):
    """No view is higher than 600 px in an output that is 1,000 px wide."""
    found = heights(browser, dict(views()))

    assert {name: each for name, each in found.items() if each > MOST} == {}
