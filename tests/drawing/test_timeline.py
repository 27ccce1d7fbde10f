"""Timelines: to scale, honest about what they cannot show."""

from __future__ import annotations

import html
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.drawing import Drawing, Lane, Span, Timeline
from gpumagic.drawing.lanes import of_stretches, of_strokes
from gpumagic.drawing.timeline import Scale


def text_of(*lanes, width=60, **options):
    """The text of a timeline of these lanes."""
    return Drawing("T.", (Timeline("C", lanes, **options),)).text(width)


def test_lanes_are_drawn_to_one_scale():
    """The second half of the time is the second half of the line."""
    text = text_of(
        Lane("a", (Span(0, 1, kind="kernel"),)), Lane("b", (Span(1, 2, kind="copy"),))
    )

    first, second = text.split("\n")[3:5]
    assert first.count("█") == first.count("·")
    assert second.count("▓") == second.count("·")
    assert first.split()[1][0] == "█"
    assert second.split()[1][-1] == "▓"


def test_clock_of_the_spans_does_not_matter():
    """Times are told from the first span on."""
    timeline = Timeline("C", (Lane("a", (Span(1e9, 1e9 + 2, "step"),)),))

    assert "step (0 s to 2.00 s)" in timeline.html()


def test_spans_too_fine_for_the_line_become_heights_and_say_so():
    """A lane that idles three quarters of the time does not look busy."""
    spans = tuple(Span(at, at + 0.25, kind="kernel") for at in range(1000))
    timeline = Timeline("C", (Lane("a", spans),))

    assert "the height is the share of time" in timeline.html()
    assert not timeline.one_by_one(timeline.lanes[0])
    text = text_of(*timeline.lanes)
    assert "█" not in text.split("\n")[3]
    assert "the height is the share of time" in text.replace("\n  ", " ")


def test_few_spans_make_no_remark():
    """Where every span is drawn, nothing needs to be said."""
    spans = tuple(Span(at, at + 0.5) for at in range(4))

    assert "the height is" not in Timeline("C", (Lane("a", spans),)).html()


def test_kinds_keep_their_colours_across_timelines():
    """A meaning has its own; of others, a given order holds for the missing."""
    lanes = (Lane("a", (Span(0, 1, kind="copy"), Span(1, 2, kind="load"))),)

    assert "▓ copy  ▤ load" in text_of(*lanes)
    assert "▓ copy  ▥ load" in text_of(*lanes, kinds=("compute", "copy", "load"))


def test_text_tells_each_lane_in_one_line():
    """The sentence on each lane is for the ear; what is drawn is not said again."""
    lanes = (Lane("a", (Span(0, 1, "step", "kernel"),)), Lane("b"))
    text = text_of(*lanes)

    assert len(text.splitlines()) == 7
    assert "step" not in text
    assert "a: busy 1.00 s of 1.00 s, 1 span: step" in Timeline("C", lanes).html()


def test_kinds_beyond_the_colours_share_one():
    """No two kinds look alike without the legend saying so."""
    spans = tuple(Span(at, at + 1, kind=f"kind {at}") for at in range(6))

    assert "◆ kind 4, kind 5" in text_of(Lane("a", spans))


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
    """Twenty thousand kernels fit into the habit of ten kilobytes."""
    spans = tuple(Span(at, at + 0.5, "k", "ab"[at % 2]) for at in range(20_000))

    assert len(Timeline("C", (Lane("a", spans), Lane("b", spans))).html()) < 10_000


def titles(timeline):
    """What the pointer finds, from left to right, with the width of each box."""
    found = re.findall(
        r'<span(?: title="([^"]*)")? style="flex:(\d+)"></span>', timeline.html()
    )
    return [(html.unescape(title), int(width)) for title, width in found]


def test_pointer_finds_name_start_and_length():
    """Where a span is drawn, resting there tells which and when it was."""
    lane = Lane("a", (Span(0, 1, "gemm <4>"), Span(3, 4, "copy")))

    found = titles(Timeline("C", (lane,)))

    assert found == [
        ("gemm <4>: 1.00 s, from 0 s on", 120),
        ("", 240),
        ("copy: 1.00 s, from 3.00 s on", 120),
    ]


def test_pointer_finds_all_spans_that_share_a_pixel():
    """What is drawn over each other is told together, with its number."""
    spans = (Span(0, 40, "outer"), Span(20, 20, "mark"), Span(20.01, 20.02, "mark"))

    found = titles(Timeline("C", (Lane("a", spans),)))

    assert [title for title, _ in found] == [
        "outer: 40.0 s, from 0 s on",
        "3 spans: outer, 2 x mark",
        "outer: 40.0 s, from 0 s on",
    ]
    assert sum(width for _, width in found) == 480


def test_pointer_finds_counts_and_main_names_where_spans_are_merged():
    """A stretch of very many spans tells their number and what took the time."""
    names = ("long", "short", "short", "tiny")
    spans = tuple(
        Span(at / 100, (at + (90 if at % 4 == 0 else 10) / 100) / 100, names[at % 4])
        for at in range(2400)
    )

    first, *_ = found = titles(Timeline("C", (Lane("a", spans),)))

    assert first == (
        "0 s to 1.00 s: 100 spans: 25 x long, 50 x short, 1 other name",
        20,
    )
    assert sum(width for _, width in found) == 480


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 60), st.sampled_from("abc")),
        min_size=1,
        max_size=150,
    )
)
def test_boxes_under_the_pointer_cover_the_picture(drawn):
    """However spans lie, the boxes fill the line, and each span is told somewhere."""
    spans = tuple(Span(at, at + long, name) for at, long, name in drawn)
    lane = Lane("a", spans)
    scale = Scale.of((lane,))

    told = (
        list(of_strokes(lane, scale, 480)),
        list(of_stretches(lane, scale, 480, 24)),
    )

    for hovers in told:
        assert [each.left for each in hovers[1:]] == [
            each.right for each in hovers[:-1]
        ]
        assert (hovers[0].left, hovers[-1].right) == (0, 480)
    shares = sum(
        int(re.search(r"(\d+) span", each.title)[1]) for each in told[1] if each.title
    )
    assert shares >= len(spans)


def test_long_names_do_not_fill_the_notebook():
    """A name of a thousand letters is cut where the pointer rests; words have it."""
    timeline = Timeline("C", (Lane("a", (Span(0, 1, "x" * 1000),)),))

    ((title, _),) = titles(timeline)

    assert title == f"{'x' * 57}...: 1.00 s, from 0 s on"
    assert "x" * 1000 in timeline.lanes[0].words(timeline.scale)


def test_window_shows_the_time_before_and_after():
    """A device that idled at both ends is not drawn as if it had been busy."""
    lane = Lane("a", (Span(1, 2, "k", "k"),))
    timeline = Timeline("C", (lane,), window=Span(0, 4))

    assert timeline.scale.share(lane) == "25.0 %"
    assert timeline.scale.ticks() == ["0 s", "2.00 s", "4.00 s"]
    assert [width for _, width in titles(timeline)] == [120, 120, 240]


def test_lane_of_nothing_has_nothing_to_point_at():
    """An empty lane pays for no boxes."""
    assert "title=" not in Timeline("C", (Lane("a"),)).html()


@given(st.floats(1e-9, 1e3), st.sampled_from((24, 60, 96, 480)))
def test_the_last_end_is_at_the_end_of_the_line(length_s, width):
    """However the scale's length rounds, no span reaches beyond the picture."""
    lane = Lane("a", (Span(0.0, length_s, "a"),))
    scale = Scale.of((lane,))

    assert scale.place(length_s, width) == width
    assert sum(bool(each.title) for each in of_stretches(lane, scale, 480, width))
