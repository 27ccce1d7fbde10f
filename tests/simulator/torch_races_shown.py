"""What the machine's list of races is to its user: words, and still a sequence."""

from __future__ import annotations

import warnings

import torch


def sums_too_early(times=1):
    """A race between two streams, met so many times at the same two lines."""
    side = torch.sim.Stream()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(times):
            filled = torch.ones(10_000, device="sim").mul_(2)
            with torch.sim.stream(side):
                filled.sum()
            torch.sim.synchronize()


def flat(text):
    """The text without its line breaks."""
    return " ".join(text.split())


def test_races_are_told_in_words(box):
    """As text, as repr and in a notebook, each race says where and what to do."""
    sums_too_early()

    shown = box.races
    for text in (str(shown), repr(shown), shown._repr_mimebundle_()["text/plain"]):
        assert "1 data race so far. [simulated H100 SXM]" in flat(text)
        assert "torch_races_shown.py, line " in text
        assert ".wait_stream(torch.sim.default_stream())" in flat(text)
    html = shown._repr_mimebundle_()["text/html"].replace("<wbr/>", "")
    assert "wait_stream(" in html
