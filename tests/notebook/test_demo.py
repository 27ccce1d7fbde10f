"""`make demo`: the tour in a real kernel, a page, and a summary of what was seen."""

from __future__ import annotations

import pytest

from gpumagic.__main__ import main

pytest.importorskip("torch")
pytest.importorskip("nbconvert")


@pytest.mark.kernel
def test_the_demo_says_what_it_saw_and_where_to_look(tmp_path, capsys, monkeypatch):
    """Each answer is whole and labelled, the page is written, and nothing is opened."""
    monkeypatch.setattr("webbrowser.open", lambda *_: pytest.fail("a browser opened"))
    page = tmp_path / "tour.html"

    assert main(["demo", "--out", str(page)]) == 0

    told = capsys.readouterr().out
    assert told.rstrip().endswith(f"Open it in a browser: {page}")
    assert told.count("  - ") > 8
    assert "[simulated H100 SXM]" in told
    assert "Measuring" not in told
    assert "How it was measured" in page.read_text(encoding="utf-8")
