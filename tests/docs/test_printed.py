"""The comparison that keeps printed outputs true, tried on true and on false ones."""

from __future__ import annotations

import pytest

from tests.docs.printed import missing

SHOWN = """\
+128 MiB on sim:0, peak 193 MiB (exact)

Who holds it
  Name     Holds    Line
  ───────  ───────  ───────────────
  model    64.1 MiB  In [14], line 3
  x        1.00 MiB  In [2], line 1
"""


@pytest.mark.parametrize(
    "printed",
    [
        "+128 MiB on sim:0, peak 193 MiB\n(exact)\n",
        "+128 MiB\n...\n  x        1.00 MiB  In [7], line 1\n",
        "Name  Holds  Line\n───  ──  ──\nmodel  64.1 MiB  In [3], line 3\n",
    ],
)
def test_what_is_shown_is_found(printed):
    """Line breaks, widths, numbers of cells and lines left out do not count."""
    assert missing(printed, SHOWN) is None


@pytest.mark.parametrize(
    ("printed", "part"),
    [
        ("+129 MiB on sim:0\n", "+129 MiB on sim:0"),
        ("Who holds it\n...\n+128 MiB\n", "+128 MiB"),
        ("28 MiB on sim:0\n", "28 MiB on sim:0"),
        ("model  64.1 Mi\n", "model  64.1 Mi"),
    ],
)
def test_what_is_not_shown_is_told(printed, part):
    """Another figure, word, order or line of code is a difference."""
    assert missing(printed, SHOWN) == part
