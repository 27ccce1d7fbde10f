"""Drawings of any content, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from gpumagic.drawing import (
    Areas,
    Badge,
    Branch,
    Column,
    Curve,
    Details,
    Drawing,
    Grid,
    Key,
    Lane,
    Layer,
    Meter,
    Note,
    Paragraph,
    Span,
    Stack,
    Stacks,
    Table,
    Timeline,
    Tree,
)
from gpumagic.drawing.palette import BEFORE, LAYERS, TONES

# Anything that a str can hold, with what breaks layouts in good supply.
_NASTY = (
    "\x00\x07\x1b\x7f\x9b\n\r\t\u2028\u202e\u200b\ufeff\ud800\ufffe<>&\"'`-中🚀e\u0301"
)
TEXTS = st.text(max_size=40) | st.text(alphabet=_NASTY, max_size=20)
NUMBERS = st.none() | st.floats()
BADGES = st.builds(Badge, TEXTS, st.sampled_from(sorted(TONES)))
METERS = st.builds(Meter, NUMBERS, TEXTS)
KEYS = st.builds(Key, st.sampled_from((*LAYERS, BEFORE)), TEXTS)
CELLS = st.none() | TEXTS | BADGES | METERS | KEYS
COLUMNS = st.builds(Column, TEXTS, st.booleans())


@st.composite
def tables(draw):
    """Tables with up to eight columns, some of them numbers."""
    columns = tuple(draw(st.lists(COLUMNS, min_size=1, max_size=8)))
    row = st.tuples(*[CELLS] * len(columns))
    rows = tuple(draw(st.lists(row, max_size=6)))
    total = draw(st.none() | st.integers(0, 10**12))
    return Table(draw(TEXTS), columns, rows, total)


GRIDS = st.builds(Grid, TEXTS, st.lists(st.tuples(TEXTS, CELLS), max_size=6).map(tuple))
PIECES = st.lists(st.tuples(st.sampled_from("ab"), st.floats()), max_size=3).map(tuple)
BARS = st.builds(
    Stacks,
    TEXTS,
    st.lists(st.builds(Stack, TEXTS, PIECES, TEXTS), max_size=5).map(tuple),
    st.just((("a", ""), ("b", "1 B"))),
)
TIMES = st.floats() | st.floats(0, 1)
SPANS = st.builds(Span, TIMES, TIMES, TEXTS, st.sampled_from("abcdefg") | TEXTS)
LANES = st.builds(Lane, TEXTS, st.lists(SPANS, max_size=50).map(tuple))
TIMELINES = st.builds(Timeline, TEXTS, st.lists(LANES, max_size=4).map(tuple))
HEIGHTS = st.lists(st.floats(-1e12, 1e12), max_size=400).map(tuple)
CURVES = st.builds(Curve, TEXTS, HEIGHTS, st.tuples(TEXTS, TEXTS), TEXTS)
ROLES = st.sampled_from(("", "before", "together"))
LAYERED = st.lists(st.builds(Layer, TEXTS, HEIGHTS, ROLES), max_size=4).map(tuple)
AREAS = st.builds(Areas, TEXTS, LAYERED, st.tuples(TEXTS, TEXTS), TEXTS)
FIGURES = st.tuples(TEXTS, TEXTS)
SHARES = st.floats(0, 1)
BRANCHES = st.recursive(
    st.builds(Branch, TEXTS, FIGURES, SHARES, TEXTS),
    lambda inner: st.builds(
        Branch, TEXTS, FIGURES, SHARES, TEXTS, st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=6,
)
TREES = st.builds(Tree, TEXTS, FIGURES, BRANCHES, st.just(True))
NOTES = st.builds(Note, st.sampled_from(("note", "warning", "problem")), TEXTS, TEXTS)
PLAIN = st.one_of(
    tables(),
    GRIDS,
    BARS,
    TIMELINES,
    AREAS,
    CURVES,
    TREES,
    NOTES,
    st.builds(Paragraph, TEXTS),
)
PARTS = PLAIN | st.builds(Details, TEXTS, st.lists(PLAIN, max_size=2).map(tuple))
DRAWINGS = st.builds(Drawing, TEXTS, st.lists(PARTS, max_size=4).map(tuple), TEXTS)
