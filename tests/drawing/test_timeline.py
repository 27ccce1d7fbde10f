"""Timelines: to scale, honest about what they cannot show."""

from __future__ import annotations

from gpumagic.drawing import Drawing, Lane, Span, Timeline


def text_of(*lanes, width=60, **options):
    """The text of a timeline of these lanes."""
    return Drawing("T.", (Timeline("C", lanes, **options),)).text(width)


def test_lanes_are_drawn_to_one_scale():
    """The second half of the time is the second half of the line."""
    text = text_of(
        Lane("a", (Span(0, 1, kind="k"),)), Lane("b", (Span(1, 2, kind="c"),))
    )

    first, second = text.split("\n")[3:5]
    assert first.count("█") == first.count("·")
    assert second.count("▓") == second.count("·")
    assert first.split()[1][0] == "█"
    assert second.split()[1][-1] == "▓"


def test_clock_of_the_spans_does_not_matter():
    """Times are told from the first span on."""
    text = text_of(Lane("a", (Span(1e9, 1e9 + 2, "step"),)))

    assert "step (0 s to 2.00 s)" in text


def test_spans_too_fine_for_the_line_become_heights_and_say_so():
    """A lane that idles three quarters of the time does not look busy."""
    spans = tuple(Span(at, at + 0.25, kind="k") for at in range(1000))
    timeline = Timeline("C", (Lane("a", spans),))

    assert "the height is the share of time" in timeline.html()
    assert not timeline.one_by_one(timeline.lanes[0])
    text = text_of(*timeline.lanes)
    assert "█" not in text.split("\n")[3]
    assert "1000 spans" in text


def test_few_spans_make_no_remark():
    """Where every span is drawn, nothing needs to be said."""
    spans = tuple(Span(at, at + 0.5) for at in range(4))

    assert "the height is" not in Timeline("C", (Lane("a", spans),)).html()


def test_kinds_keep_their_colours_across_timelines():
    """An order that is given holds even where a kind is missing."""
    lanes = (Lane("a", (Span(0, 1, kind="copy"),)),)

    assert "█ copy" in text_of(*lanes)
    assert "▓ copy" in text_of(*lanes, kinds=("kernel", "copy"))


def test_kinds_beyond_the_colours_share_one():
    """No two kinds look alike without the legend saying so."""
    spans = tuple(Span(at, at + 1, kind=f"kind {at}") for at in range(6))

    assert "▚ kind 4, kind 5" in text_of(Lane("a", spans))


def test_broken_times_are_counted():
    """A span that ends before it begins is left out, not guessed."""
    spans = (Span(2, 1), Span(float("nan"), 1), Span(0, float("inf")), Span(0, 1))

    assert "3 spans left out: no usable times" in text_of(Lane("a", spans))


def test_lanes_beyond_a_dozen_are_counted():
    """Thirty streams do not bury the notebook."""
    lanes = tuple(Lane(f"stream {at}", (Span(0, 1),)) for at in range(30))

    assert "... and 18 lanes more" in text_of(*lanes)
    assert len(Timeline("C", lanes).html()) < 20_000


def test_very_many_spans_stay_small():
    """A hundred thousand kernels fit into the habit of ten kilobytes."""
    spans = tuple(Span(at, at + 0.5, "k", "ab"[at % 2]) for at in range(100_000))

    assert len(Timeline("C", (Lane("a", spans), Lane("b", spans))).html()) < 10_000
