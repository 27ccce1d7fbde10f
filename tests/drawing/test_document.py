"""What is in sight of a report, what is folded, and what is not said twice."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.drawing import (
    Column,
    Details,
    Drawing,
    Note,
    Paragraph,
    Table,
    how_measured,
    one_screen,
)

INNER = Details("inner", (Paragraph("innermost"),))
COPIES = Details("The copies", (Paragraph("53.2 GB/s"), INNER), "copies")
DRAWING = Drawing("answer", (Paragraph("why"), COPIES, how_measured()), "simulated")


def numbered(rows):
    """A table of so many rows, which has a word."""
    return Table(
        "Rows", (Column("N"),), tuple((str(n),) for n in range(rows)), name="rows"
    )


def test_what_is_asked_for_comes_with_the_answer_and_all_that_is_in_it():
    """The parts that were named stand open below the answer, and nothing else does."""
    text = DRAWING.asked(("copies",)).text()

    assert text.startswith("answer  [simulated]")
    assert "53.2" in text
    assert "innermost" in text
    assert "why" not in text
    assert "More" not in text


def test_a_part_that_is_not_there_is_told_with_those_that_are():
    """A word that names nothing is no error, since the work is done already."""
    text = DRAWING.asked(("cpies", "how")).text()

    assert "no part cpies here" in text
    assert "there is: copies, how" in text
    assert "How it was measured" in text


def test_the_whole_has_all_parts_open_in_both_forms():
    """Whoever asks for all gets all, also in HTML."""
    whole = DRAWING.whole()

    assert {"53.2 GB/s", "innermost", "why"} <= set(
        map(str.strip, whole.text().splitlines())
    )
    assert whole.html().count(' open="open"') == 3
    assert " open" not in DRAWING.html()


def test_what_one_screen_has_no_room_for_is_folded():
    """Eight rows and three notes are in sight, the rest where it is asked for."""
    first, whole = one_screen((numbered(20),))

    assert (len(first.rows), first.remark) == (8, "... and 12 more")
    assert whole == Details("Rows", (replace(numbered(20), caption=""),), "rows")
    assert one_screen((numbered(8),)) == (numbered(8),)
    notes = [Note("note", f"{name} is so") for name in ("a", "b", "c", "d", "e")]
    folded = Details("2 more notes", tuple(notes[3:]), "notes")
    assert one_screen((*notes, COPIES)) == (*notes[:3], folded, COPIES)


def test_a_note_that_has_just_been_read_is_one_word():
    """What the report before said is said in a word, before what is folded."""
    clocks = Note("note", "the clocks are not locked", "ask for it", word="clocks")
    cold = Note("note", "the first run is slower", word="first run")
    drawing = Drawing("answer", (clocks, cold, COPIES))

    after = drawing.after({"clocks", "other"})

    assert after.parts == (cold, Paragraph("As before: clocks."), COPIES)
    assert drawing.after({"other"}) is drawing
