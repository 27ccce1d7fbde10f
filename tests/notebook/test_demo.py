"""`make demo`: the tour in a real kernel, and a page."""

from __future__ import annotations

import pytest

from gpumagic.__main__ import main

pytest.importorskip("torch")
pytest.importorskip("nbconvert")


@pytest.mark.kernel
def test_the_demo_says_what_it_saw_and_where_to_look(tmp_path, capsys, monkeypatch):
    """The page has the answers, and nothing is opened."""
    monkeypatch.setattr("webbrowser.open", lambda *_: pytest.fail("a browser opened"))
    page = tmp_path / "tour.html"

    assert main(["demo", "--out", str(page)]) == 0

    assert capsys.readouterr().out.rstrip().endswith(f"Open it: {page}")
    written = page.read_text(encoding="utf-8")
    assert "[simulated H100 SXM]" in written
    assert "How it was measured" in written
