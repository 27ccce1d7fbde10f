"""What is said of a loader and of a watched cell, in which words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpumagic.drawing import Details, Note, Sparkline, Stacks, Table, Timeline
from gpumagic.pin_loader.report import (
    Anatomy,
    Bound,
    CopyLine,
    DataWait,
    EndToEnd,
    Gain,
    Guard,
    Leaf,
    Limit,
    LimitKind,
    LoaderReport,
    Loading,
    Part,
    Pinned,
    Rates,
    Remark,
    Remedy,
    ReuseCheck,
    Samples,
    Severity,
    State,
    Step,
    WatchReport,
    WhyPageable,
    WorkerSearch,
    WorkerTrial,
)
from gpumagic.pin_loader.view import HEADLINES, draw
from gpumagic.pin_loader.view_loader import FIXES, TONES
from gpumagic.pin_loader.view_times import (
    COPY,
    KERNEL,
    WAITS,
    WHOLE,
    splits_of,
)
from gpumagic.report.robust import Verdict, verdict_of
from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.pin_loader import samples
from tests.pin_loader.samples import GIB, MS, SAMPLES

BY_NAME = dict(SAMPLES)
PICTURES = (
    "unproven",
    "fixed",
    "wrapped",
    "diagnosed",
    "good",
    "no-gain",
    "refused-different",
)
UNTOLD = replace(
    samples.DIAGNOSED.anatomy,
    leaves=tuple(
        replace(leaf, pinned=Pinned.UNKNOWN, why=None)
        for leaf in samples.DIAGNOSED.anatomy.leaves
    ),
)
patient = settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow]
)
LATER = (
    "anatomy",
    "bound",
    "guard",
    "workers",
    "rebuilding",
    "sameness",
    "end_to_end",
    "reuse",
    "steps",
    "reason",
    "out",
)
SECONDS = st.just(0.0) | st.floats(1e-9, 1e4)
TIMES = st.builds(Samples, st.lists(SECONDS, max_size=5).map(tuple))


def flat(text):
    """The text without its line breaks."""
    return " ".join(text.split())


def text_of(report):
    """All that is said of a report, as one line."""
    return flat(draw(report).whole().text(2000))


def seen_of(report):
    """What is in sight of a report, as one line."""
    return flat(draw(report).text(2000))


def parts_of(report, kind):
    """The parts of one kind, those behind a click as well."""
    found = []
    for part in draw(report).parts:
        inside = part.parts if isinstance(part, Details) else ()
        found += [each for each in (part, *inside) if isinstance(each, kind)]
    return found


def rows_of(report, caption):
    """The rows of a table, by the words of their headings."""
    (table,) = (
        each for each in parts_of(report, Table) if each.caption.startswith(caption)
    )
    heads = [column.heading for column in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def place_of(report, words):
    """Where something is said; what comes earlier is read earlier."""
    return text_of(report).index(words)


# ---------------------------------------------------------------- every sample


@pytest.mark.parametrize("name", BY_NAME)
def test_every_sample_is_drawn_in_both_forms(name):
    """HTML survives, tells what the text tells, and the text keeps to its width."""
    drawing = draw(BY_NAME[name])

    assert_survives(drawing.html())
    assert_numbers_agree(drawing)
    for width in (40, 80, 88):
        assert max(map(cell_len, drawing.text(width).split("\n"))) <= width


@pytest.mark.parametrize("name", BY_NAME)
def test_no_sample_shows_what_is_no_word(name):
    """No None, no open brace of a template, no name of a class of ours, no NaN."""
    text = text_of(BY_NAME[name]).replace("{line}", "")

    assert not re.search(
        r"\bNone\b|[{}]|(State|Severity|Pinned|Why\w+)\.|\bnan\b", text
    )


@pytest.mark.parametrize("name", BY_NAME)
def test_simulated_figures_are_labelled(name):
    """Whoever copies the picture copies the label with it."""
    assert draw(BY_NAME[name]).label == BY_NAME[name].setting.label


@pytest.mark.parametrize("name", BY_NAME)
def test_html_is_small(name):
    """Ten kilobytes are the habit; whole stories and dozens of lines may be more."""
    most = 40_000 if name.startswith((*PICTURES, "watch-many")) else 10_000

    assert len(draw(BY_NAME[name]).html().encode()) <= most


def test_there_is_a_sample_for_every_state():
    """The gallery shows each way that it can end."""
    reports = [each for each in BY_NAME.values() if isinstance(each, LoaderReport)]

    assert {report.state for report in reports} == set(State)


@pytest.mark.parametrize(
    ("table", "words"), [(HEADLINES, State), (FIXES, WhyPageable), (TONES, Severity)]
)
def test_every_word_of_the_report_has_words_here(table, words):
    """A new state, reason or severity cannot be forgotten."""
    assert set(table) == set(words)


# -------------------------------------------------------------------- the title


@pytest.mark.parametrize(
    ("report", "title"),
    [
        (
            samples.FIXED,
            "train_dl_pinned feeds cuda:0 1.84x as fast as train_dl (1.79 to 1.90x)",
        ),
        (
            samples.FIXED_SYNTHETIC,
            (
                "train_dl_pinned feeds cuda:0 1.84x as fast as train_dl "
                "(1.79 to 1.90x), with a stand-in step"
            ),
        ),
        (
            samples.FIXED_DAMAGED,
            (
                "train_dl_pinned feeds cuda:0 1.84x as fast as train_dl "
                "(1.79 to 1.90x); but batches were overwritten while they were being "
                "copied"
            ),
        ),
        (
            samples.FIXED_SLOWER,
            "train_dl_pinned takes 1.17x as long a step as train_dl (1.13 to 1.21x)",
        ),
        (
            samples.FIXED_UNCLEAR,
            "No measurable difference between train_dl_pinned and train_dl",
        ),
        (
            samples.FIXED_UNMEASURED,
            "train_dl_pinned is ready; how much faster it is was not measured",
        ),
        (
            samples.DIAGNOSED,
            (
                "The copy to cuda:0 is the bottleneck: 14.3 of 26.4 ms a step. Pinning "
                "and copying ahead could give up to 2.18x."
            ),
        ),
        (
            replace(
                samples.DIAGNOSED, anatomy=samples.CUSTOM, bound=None, rates=Rates()
            ),
            (
                "train_dl: 3 of 5 tensors, 93.0 % of the bytes, are pageable; what "
                "could be won was not measured"
            ),
        ),
        (
            samples.NOT_STARTED,
            (
                "Loading takes 129 ms a batch with no workers; copies to cuda:0 were "
                "not measured"
            ),
        ),
        (
            samples.BY_PARTS,
            (
                "Loading is the bottleneck: 85.3 of 85.6 ms a step. More workers could "
                "give up to 2.00x on this machine."
            ),
        ),
        (
            samples.GOOD,
            "train_dl is good as it is; compute takes 12.1 of 12.3 ms a step",
        ),
        (
            samples.NO_GAIN,
            (
                "Compute is the bottleneck: 12.1 of 12.3 ms a step. No remedy here "
                "could give more than 1.02x."
            ),
        ),
        (
            samples.NO_GAIN_SYNTHETIC,
            (
                "Loading is the bottleneck: 85.3 of 85.6 ms a step. More workers could "
                "give up to 2.00x on this machine."
            ),
        ),
        (
            samples.NO_GAIN_AT_ALL,
            (
                "Loading is the bottleneck: 85.3 of 85.6 ms a step. No remedy here "
                "could give more than 1.00x."
            ),
        ),
        (
            samples.NO_GAIN_MEASURED,
            (
                "Nothing won: no measurable difference between the loop with a "
                "prefetcher and train_dl, within 1 %"
            ),
        ),
        (
            samples.REFUSED_RAM,
            (
                "Refused: pinned and shared memory would take 12.0 GiB, 61.2 % of the "
                "memory that is left"
            ),
        ),
        (
            replace(
                samples.REFUSED_RAM,
                guard=replace(samples.TOO_MUCH_RAM, locked_bytes=12 * samples.GIB),
            ),
            ("Refused: pinning would lock 12.0 GiB, 61.2 % of the memory that is left"),
        ),
        (
            replace(
                samples.REFUSED_RAM, guard=replace(samples.TOO_MUCH_RAM, locked_bytes=0)
            ),
            (
                "Refused: workers would need 12.0 GiB of shared memory, 61.2 % of the "
                "memory that is left"
            ),
        ),
        (
            samples.REFUSED_WSL,
            (
                "Refused: pinning would lock 2.50 GiB, and pinned memory under WSL "
                "does not allow that"
            ),
        ),
        (
            samples.REFUSED_SHM,
            (
                "Refused: workers would need 2.44 GiB of shared memory, and 64.0 MiB "
                "are left"
            ),
        ),
        (
            samples.REFUSED_FILES,
            (
                "Refused: workers would need 41,600 open files, 64.0 % of the files "
                "that may still be opened"
            ),
        ),
        (
            samples.ONE_SHOT,
            (
                "Refused: lines can be gone through only once, and measuring would do "
                "that"
            ),
        ),
        (
            samples.UNPICKLABLE,
            "Refused: workers cannot be given what train_dl is made of",
        ),
        (
            samples.ALREADY_THERE,
            (
                "Refused: batches of train_dl are on cuda:5 already, so pinning is "
                "pointless"
            ),
        ),
        (
            samples.NOT_THE_SAME,
            (
                "Refused: rebuilt, train_dl gave other batches: batch 2: batch[1] has "
                "255 values instead of 256"
            ),
        ),
        (
            samples.WRAPPED_ONLY,
            (
                "graph_dl could not be rebuilt; as it is, graph_dl_pinned feeds cuda:0 "
                "1.22x as fast as graph_dl (1.18 to 1.26x)"
            ),
        ),
        (samples.UNTOUCHED, "graph_dl could not be rebuilt, and stays as it is"),
        (
            samples.NO_ACCELERATOR,
            (
                "Loading takes 9.80 ms a batch with 4 workers; there is no accelerator "
                "to pin for"
            ),
        ),
        (
            samples.NO_ACCELERATOR_REBUILT,
            (
                "train_dl_pinned differs in pin_memory, num_workers and "
                "persistent_workers; there is no accelerator to pin for"
            ),
        ),
        (
            replace(
                samples.NO_ACCELERATOR_REBUILT,
                rebuilding=replace(samples.REBUILT, changes=(), depth=0),
            ),
            (
                "train_dl_pinned loads as train_dl does; there is no accelerator "
                "to pin for"
            ),
        ),
        (
            replace(
                samples.NO_ACCELERATOR_WORKERS,
                loader=replace(samples.LOADER, workers=3),
            ),
            (
                "train_dl_pinned loads 7.62x as fast with 8 workers as with none; "
                "there is no accelerator to pin for"
            ),
        ),
        (
            samples.NO_ACCELERATOR_WORKERS,
            (
                "train_dl_pinned loads 1.95x as fast with 8 workers as with 4; there "
                "is no accelerator to pin for"
            ),
        ),
    ],
)
def test_title_is_the_answer(report, title):
    """How it ended, with the figure that decided."""
    assert draw(report).title == title


@pytest.mark.parametrize(
    ("report", "title"),
    [
        (
            samples.WATCHED,
            (
                "The loop waited 30.9 % of the time for train_dl; all 3.45 GiB were "
                "copied from pageable memory"
            ),
        ),
        (
            samples.WATCHED_PINNED,
            (
                "The loop waited 14.9 % of the time for train_dl; all 3.45 GiB were "
                "copied from pinned memory"
            ),
        ),
        (
            replace(
                samples.WATCHED,
                waits=(),
                copies=(
                    CopyLine(samples.TO_X, 1, 4 * GIB, GIB),
                    CopyLine(samples.TO_Y, 1, 4 * GIB, 0),
                ),
            ),
            (
                "No DataLoader was waited for; 1.00 of 8.00 GiB were copied from "
                "pageable memory"
            ),
        ),
        (
            replace(samples.TWO_LOOPS, copies=()),
            (
                "The loops waited 36.8 % of the time for train_dl and val_dl; nothing "
                "was copied to a device"
            ),
        ),
        (
            samples.SIMULATED_WATCH,
            (
                "The loop waited 1.33 s for train_dl; all 3.45 GiB were copied from "
                "pageable memory"
            ),
        ),
        (
            samples.UNTRACED_WATCH,
            (
                "The loop waited 30.9 % of the time for train_dl; 3.46 GiB were copied "
                "to the device"
            ),
        ),
        (
            samples.NO_TIME,
            "The loop waited for dl; nothing was copied to a device",
        ),
    ],
)
def test_title_of_a_watched_cell_is_the_answer(report, title):
    """Waiting as a share of the cell, and copies by where they came from."""
    assert draw(report).title == title


def test_partly_unknown_copies_are_a_lower_bound():
    """What is known of is at least pageable, and nobody says all is pinned."""
    known, unknown = CopyLine(None, 1, GIB, GIB), CopyLine(None, 1, GIB, None)
    pinned = CopyLine(None, 1, GIB, 0)

    some = draw(replace(samples.WATCHED, copies=(known, unknown))).title
    none = draw(replace(samples.WATCHED, copies=(pinned, unknown))).title

    assert "at least 1.00 of 2.00 GiB were copied from pageable" in some
    assert "pinned" not in none


# ------------------------------------------------------------------- the order


def test_what_makes_results_wrong_is_read_first():
    """Overwritten batches and serious remarks stand above the figures."""
    wrong = replace(
        samples.FIXED_DAMAGED,
        remarks=(
            Remark("slow", "faster"),
            Remark("values may be wrong", serious=True),
        ),
    )

    first, second, *_ = parts_of(wrong, Note)

    assert "filled again while it was still being copied" in first.text
    assert (second.kind, second.text) == ("problem", "values may be wrong")
    assert place_of(wrong, "values may be wrong") < place_of(wrong, "A step, median")
    assert "slow" in draw(wrong).folded["notes"].parts[-1].text


def test_refusal_says_why_and_what_to_type_first():
    """The reason comes before the table that it rests on, and its hint once."""
    (first, *_) = draw(samples.REFUSED_RAM).parts

    assert (first.kind, first.hint) == (
        "problem",
        "%pin_loader train_dl --workers 4 --prefetch 2",
    )


def test_reason_that_is_the_title_is_not_said_again():
    """What to do about it is."""
    (first, *_) = draw(samples.NO_GAIN_AT_ALL).parts

    assert seen_of(samples.NO_GAIN_AT_ALL).count("85.3 of 85.6 ms a step") == 1
    assert first.text.startswith("make loading itself faster")


def test_hint_that_was_given_is_not_given_again():
    """A reason made of the limit's own hint silences the limit."""
    hint = samples.TOO_MUCH_RAM.limits[0].hint
    report = replace(samples.REFUSED_RAM, reason=Remark("too much", hint))

    assert text_of(report).count(hint) == 1


@pytest.mark.parametrize(
    ("report", "typed"),
    [
        (samples.DIAGNOSED, "%pin_loader train_dl"),
        (samples.BY_PARTS, "%pin_loader train_dl --workers auto"),
        (samples.NO_GAIN_SYNTHETIC, "%pin_loader train_dl --workers auto"),
        (samples.NOT_STARTED, "%pin_loader train_dl --workers auto"),
        (samples.NO_ACCELERATOR, "%pin_loader train_dl --workers auto"),
    ],
)
def test_what_is_to_be_typed_is_the_best_remedy_there_is(report, typed):
    """In sight, and once; nothing that gives less is advised beside it."""
    hints = [note.hint for note in draw(report).notes if note.hint.startswith("%pin")]

    assert hints == [typed]


def test_a_new_loader_does_not_hide_that_workers_could_give_more():
    """It feeds faster, and where more is to be had is said as well."""
    report = replace(samples.FIXED, bound=samples.ADDED_UP)

    hints = [note.hint for note in draw(report).notes]

    assert "%pin_loader train_dl --workers auto" in hints
    assert all("--workers" not in note.hint for note in draw(samples.FIXED).notes)


def test_what_is_said_of_a_link_is_said_once_in_a_notebook():
    """It is the same for every loader: the next report has a word in its place."""
    link = [note for note in draw(samples.BAD_LINK).notes if note.word]

    again = draw(samples.BAD_LINK).after({note.word for note in link})
    assert len(link) == 2
    assert "numactl" not in again.text()
    assert "As before: the link." in again.text()


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.DIAGNOSED, "More workers would not help."),
        (samples.NO_GAIN_AT_ALL, "would not help: all 2 processors have one."),
        (samples.BY_PARTS, "num_workers=2 2.00x"),
        (samples.BY_PARTS, "pin_memory=True 1.00x"),
        (samples.DIAGNOSED, "pin_memory=True 15.0 ms 1.76x"),
    ],
)
def test_whether_workers_and_pinning_help_is_in_sight(report, said):
    """Whoever asks has the answer on the first screen."""
    assert said in seen_of(report)


def test_loop_to_type_is_given_with_the_new_name():
    """A pair has two names; whoever gets other batches has one."""
    assert "-> for x, y in train_dl_pinned:" in text_of(samples.FIXED)
    assert "-> for batch in train_dl_pinned:" in text_of(samples.FIXED_CUSTOM)
    assert "leave out `.to()`" in text_of(samples.FIXED)


def test_more_than_a_pair_is_one_batch():
    """Names are made up for two tensors only."""
    three = replace(
        samples.PAIR, leaves=(*samples.images(), samples.leaf("batch[2]", 4))
    )

    assert "-> for batch in" in text_of(replace(samples.FIXED, anatomy=three))


def test_prefetching_is_not_promised_where_there_is_none():
    """Without an accelerator batches stay on the host, and `.to()` in the loop."""
    assert "leave out" not in text_of(samples.NO_ACCELERATOR_WORKERS)


def test_diagnosis_offers_to_mend_only_what_gains():
    """Below five percent nobody is told to go on."""
    poor = replace(samples.DIAGNOSED, bound=samples.NOTHING_TO_WIN)

    assert "-> %pin_loader train_dl" in text_of(samples.DIAGNOSED)
    assert "-> %pin_loader" not in text_of(poor)


# ------------------------------------------------------------------ end to end


def test_pieces_of_a_step_come_to_the_step():
    """Waiting, copying and compute fill the bar, and no more."""
    (bars,) = parts_of(samples.FIXED, Stacks)

    before, after = bars.stacks
    assert before.length == pytest.approx(26.4 * MS)
    assert after.length == pytest.approx(26.4 * MS * 0.5435)
    pieces = dict(before.pieces)
    assert pieces[KERNEL] == pytest.approx(12.1 * MS)
    assert pieces[COPY] == pytest.approx(14.2 * MS * 0.98)
    assert pieces[WAITS] == pytest.approx(26.4 * MS - 12.1 * MS - 14.2 * MS * 0.98)
    assert dict(after.pieces)[COPY] == pytest.approx(2.9 * MS * 0.03)


def test_estimated_overlap_divides_where_nothing_was_traced():
    """The times alone say less surely how much is hidden."""
    before, _ = splits_of(samples.FIXED_WITH_WORKERS, samples.ESTIMATED)

    assert before.copying_s == pytest.approx(14.2 * MS * 0.95)


def test_old_loop_blocks_and_the_new_one_does_not():
    """Without times of the device, each is divided by what its own copies take."""
    copies = tuple(replace(each, device=None) for each in samples.RATES.copies)
    rates = replace(samples.RATES, copies=copies)

    before, after = splits_of(replace(samples.FIXED, rates=rates), samples.FASTER)

    assert before.copying_s == pytest.approx(14.2 * MS * 1.01 * 0.98)
    assert after.copying_s == pytest.approx(11e-6 * 0.03)


@pytest.mark.parametrize(("overlap", "copying_s"), [(1.5, 0.0), (-0.5, 14.2 * MS)])
def test_impossible_overlap_is_held(overlap, copying_s):
    """Not more than all is hidden, and not less than nothing."""
    found = replace(samples.FASTER, overlap=(overlap, None))

    before, _ = splits_of(samples.FIXED, found)

    assert before.copying_s == pytest.approx(copying_s)


def test_copying_fills_no_more_than_the_step():
    """What was measured as a whole is what the parts have to fit into."""
    short = samples.comparison(0.9, step_s=13 * MS)
    found = replace(samples.FASTER, result=short)

    before, _ = splits_of(samples.FIXED, found)

    assert before.copying_s == pytest.approx(0.9 * MS)
    assert before.waiting_s == 0


def test_what_cannot_be_told_apart_is_one_piece():
    """No overlap: waiting or copying. No step: all of it."""
    untold = replace(samples.FIXED, end_to_end=samples.UNTRACED)
    (bars,) = parts_of(untold, Stacks)
    (whole,) = parts_of(replace(untold, rates=Rates()), Stacks)

    assert dict(bars.stacks[0].pieces)[COPY] == 0
    assert dict(bars.legend)[WAITS].startswith("for batches or copies")
    assert set(dict(whole.stacks[0].pieces)) == {WHOLE}


@patient
@given(
    st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8),
    st.none() | TIMES,
    st.tuples(*[st.none() | st.floats(-0.5, 1.5)] * 2),
    st.tuples(*[st.none() | st.floats(0, 1)] * 2),
)
def test_any_split_keeps_to_its_step(pairs, step, overlap, pageable):
    """However parts and whole disagree, no piece is negative, and they add up."""
    found = replace(
        samples.FASTER,
        result=verdict_of(pairs),
        overlap=overlap,
        pageable_share=pageable,
    )
    rates = replace(samples.RATES, step=step and Step("fit", step))

    for split in splits_of(replace(samples.FIXED, rates=rates), found):
        pieces = [split.compute_s, split.copying_s, split.waiting_s, split.rest_s]
        known = [piece for piece in pieces if piece is not None]
        assert min(known, default=0.0) >= 0
        assert not known or sum(known) == pytest.approx(split.whole_s)


@pytest.mark.parametrize("verdict", [Verdict.SAME, Verdict.CANNOT_TELL])
def test_no_measurable_difference_is_said(verdict):
    """Whoever won nothing reads that, and not a figure above one."""
    found = replace(samples.FASTER, result=samples.comparison(0.98, verdict))
    report = replace(samples.FIXED, end_to_end=found)

    assert "o measurable difference" in draw(report).title
    assert "as fast as" not in draw(report).title


def test_modelled_waits_are_told():
    """Which clock a figure belongs to is said, once."""
    text = text_of(samples.FIXED_SIMULATED)

    assert text.count("Waits for data are worked out from how fast the loader is") == 1
    assert "Times of loading" not in text
    assert "Times of loading and of copies within the host are this machine's" in (
        text_of(replace(samples.DIAGNOSED, setting=samples.SIMULATED))
    )


def test_figures_of_a_model_have_no_statistics():
    """The same each time, they have neither an interval nor a range."""
    text = text_of(samples.FIXED_SIMULATED)

    assert "confidence" not in text
    assert "(1.79 to 1.90x)" not in text
    same = replace(samples.RATES, pin_copy=Samples((1 * MS,) * 9))
    ranges = text_of(replace(samples.FIXED_SIMULATED, rates=same))
    assert "copy into pinned memory: 1.00 ms copy into newly" in ranges


def test_overlap_that_was_not_traced_is_not_nothing():
    """None is not measured."""
    half = replace(samples.FASTER, overlap=(None, 0.9), pageable_share=(None, 0.0))

    traced, pageable = rows_of(
        replace(samples.FIXED, end_to_end=half), "Copying to the"
    )

    assert (traced["Before"], traced["After"]) == ("not measured", "90.0 %")
    assert (pageable["Before"], pageable["After"]) == ("not measured", "0 %")


# ------------------------------------------------------------------ four steps


def test_both_loops_are_in_one_picture():
    """On one scale: the shorter one looks shorter."""
    (timeline,) = parts_of(samples.FIXED, Timeline)

    lanes = {lane.name: lane for lane in timeline.lanes}
    assert list(lanes) == [
        *(f"now: {each}" for each in ("load", "copy", "compute")),
        *(f"then: {each}" for each in ("load", "copy", "compute")),
    ]
    ends = {
        name: max(span.end_s for span in lane.drawn) for name, lane in lanes.items()
    }
    assert ends["then: compute"] < ends["now: compute"]
    kinds = {span.kind for lane in timeline.lanes for span in lane.drawn}
    assert kinds == {"host code", "copy", "kernel"}


def test_there_is_one_picture_in_sight():
    """Before and after are in it; the timeline is there when asked for."""
    for report in (samples.FIXED, samples.DIAGNOSED, samples.NO_GAIN):
        kinds = [type(part) for part in draw(replace(report, steps=samples.FOUR)).parts]
        assert [each for each in kinds if each in (Stacks, Timeline)] == [Stacks]


def test_a_stand_in_is_no_part_of_a_step():
    """Where the user's compute is unknown, bars have loading and copying only."""
    (bars,) = parts_of(samples.BY_PARTS, Stacks)

    assert "without your compute" in bars.caption
    assert all(dict(stack.pieces).get(KERNEL, 0) == 0 for stack in bars.stacks)
    assert "compute in a step" not in text_of(samples.BY_PARTS)


# ------------------------------------------------------------------- the bound


def test_binding_part_is_told_in_words():
    """Whoever sees no colours knows it too."""
    text = text_of(samples.DIAGNOSED)

    assert "a step as it is: 26.4 ms, measured" in text
    assert "no step is shorter than compute, 12.1 ms, as loading is now" in text


def test_remedies_come_with_their_most_the_best_first():
    """Those by which more workers bring nothing are left out, and that is said."""
    rows = rows_of(samples.DIAGNOSED, "What each remedy")
    loading = rows_of(samples.BY_PARTS, "What each remedy")

    assert [row["At most"] for row in rows] == ["2.18x", "1.76x"]
    assert [row["Remedy"] for row in loading] == [
        "num_workers=2",
        "num_workers=2, pinned, copied ahead",
        "pinned, copied ahead",
        "pin_memory=True",
    ]
    assert [row["At most"] for row in loading] == ["2.00x", "2.00x", "1.00x", "1.00x"]


def test_what_was_made_has_its_measured_gain_beside_the_bound():
    """The others were not measured."""
    rows = rows_of(samples.FIXED, "What each remedy")

    assert [row["Measured"] for row in rows] == ["-", "1.84x", "-"]


def test_step_that_was_added_up_is_estimated():
    """So is one that stands in for the user's."""
    text = text_of(samples.BY_PARTS)

    assert "a step as it is: 85.6 ms, added up from the parts" in text
    assert "`--step FN` measures it" in text


@patient
@given(
    st.lists(st.tuples(st.sampled_from(Part), SECONDS), max_size=4),
    SECONDS,
    SECONDS,
    st.lists(st.builds(Gain, st.sampled_from(Remedy), SECONDS), max_size=3),
    st.booleans(),
)
def test_any_bound_is_drawn(parts, now_s, best_s, gains, measured):
    """Nothing as a time divides nothing."""
    bound = Bound(tuple(parts), now_s, measured, best_s, Part.LINK, tuple(gains))

    for state in (State.DIAGNOSED, State.NO_GAIN, State.ALREADY_GOOD):
        report = replace(samples.DIAGNOSED, state=state, bound=bound)
        assert_numbers_agree(draw(report))


# ------------------------------------------------------------------- one batch


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.DIAGNOSED, "because pin_memory is off: batch[0] and batch[1]."),
        (samples.DIAGNOSED, "What mends it: DataLoader(..., pin_memory=True)."),
        (
            replace(samples.DIAGNOSED, anatomy=samples.CUSTOM),
            (
                "are pageable because the pinner passes Sample objects through -> the "
                "adapter of %pin_loader pins it, or give Sample a pin_memory() method"
            ),
        ),
        (samples.FIXED_CUSTOM, "Those of train_dl_pinned are pinned."),
        (BY_NAME["diagnosed-mixed"], "... and 1 more reason"),
        (BY_NAME["diagnosed-mixed"], 'pinned, the same memory as batch["image"]'),
        (BY_NAME["diagnosed-mixed"], "pinned, not contiguous"),
        (
            BY_NAME["diagnosed-mixed"],
            "changes classes: batch from LabelledDict to dict",
        ),
        (BY_NAME["diagnosed-mixed"], "and of 1 it is not known"),
        (
            replace(samples.DIAGNOSED, anatomy=UNTOLD),
            "Whether the tensors of a batch are pinned is not known.",
        ),
        (
            replace(
                samples.DIAGNOSED, anatomy=replace(UNTOLD, leaves=UNTOLD.leaves[:1])
            ),
            "Whether the one tensor of a batch is pinned is not known.",
        ),
        (BY_NAME["diagnosed-mixed"], "11 other values of a batch"),
        (BY_NAME["diagnosed-forty-leaves"], "the 10 largest of its tensors"),
        (BY_NAME["diagnosed-forty-leaves"], "... and 30 more"),
        (BY_NAME["diagnosed-left-out"], "At least 200 of 200 tensors"),
        (BY_NAME["diagnosed-left-out"], "5,000 more tensors are not listed"),
        (BY_NAME["diagnosed-left-out"], "... and 5,190 more"),
        (BY_NAME["diagnosed-no-tensors"], "holds no tensors"),
        (samples.NO_ACCELERATOR, "because there is no accelerator to pin for"),
    ],
)
def test_what_must_be_said_of_a_batch_is_said(report, said):
    """Each kind of batch has its words."""
    assert said in text_of(report)


def test_epochs_too_short_to_measure_are_told():
    """Beside how fast loading is stands that its epochs ended before it was known."""
    load = replace(samples.FIXED.rates.load, ended_early=True)
    report = replace(samples.FIXED, rates=replace(samples.FIXED.rates, load=load))

    assert "its epochs are short" not in text_of(samples.FIXED)
    assert "its epochs are short" in text_of(report)


def test_a_look_that_may_not_pin_says_what_the_loader_is_set_to():
    """On an unused GPU nothing is known of pinning but what was asked for."""
    loader = replace(samples.DIAGNOSED.loader, pin_memory=True)
    report = replace(samples.DIAGNOSED, loader=loader, anatomy=UNTOLD, bound=None)

    report = replace(report, rates=Rates())
    assert draw(report).title == (
        "train_dl is set to pin its batches; whether it does was not measured"
    )
    pageable = replace(report, anatomy=samples.DIAGNOSED.anatomy)
    assert "are pageable" in draw(pageable).title


AHEAD_BESIDE_NOTHING = (
    "No kernel was running while batches were copied ahead: the step before was done, "
    "and the next one was not launched yet."
)


def hiding(after, *, copy_s=27e-6, pageable=0.0, depth=1):
    """The report of a mended loader of which a trace has shown so much overlap."""
    report = samples.FIXED
    found = replace(
        report.end_to_end, overlap=(0.0, after), pageable_share=(1.0, pageable)
    )
    modes = tuple(
        replace(mode, device=Samples((copy_s,)) if mode.device else None)
        for mode in report.rates.copies
    )
    return replace(
        report,
        end_to_end=found,
        rates=replace(report.rates, copies=modes),
        rebuilding=replace(report.rebuilding, depth=depth),
    )


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (
            hiding(0.0),
            (
                f"{AHEAD_BESIDE_NOTHING} A copy takes 27.0 us here, and is over before "
                "the host has launched the first kernel of a step."
            ),
        ),
        (hiding(0.02), "Hardly a kernel was running"),
        (hiding(0.0, copy_s=5e-3), AHEAD_BESIDE_NOTHING),
        (hiding(0.0, pageable=1.0), "A copy from pageable memory holds the host"),
        (hiding(0.0, depth=0), "Nothing is copied ahead"),
    ],
)
def test_why_copies_ahead_are_not_hidden_is_said(report, reason):
    """Beside 0 % stands what was running meanwhile, and what was not."""
    assert reason in text_of(report)


@pytest.mark.parametrize(
    "report", [hiding(0.3), hiding(None), hiding(0.0, copy_s=5e-3)]
)
def test_launching_is_blamed_for_short_copies_only(report):
    """Where copies were hidden, or were not traced, there is nothing to explain."""
    assert "before the host has launched" not in text_of(report)


def test_the_picture_says_what_it_leaves_out():
    """Its copies lie beside compute although a trace may show none that does."""
    assert "Worked out from the rates; launching is left out." in text_of(hiding(0.0))


@pytest.mark.parametrize("anatomy", [samples.ON_DEVICE, samples.THOUSANDS])
def test_only_what_is_pinned_is_called_pinned(anatomy):
    """On the device is not pinned, and what was not looked at may be pageable."""
    leaves = tuple(
        replace(leaf, pinned=Pinned.PINNED) if anatomy.left_out else leaf
        for leaf in anatomy.leaves
    )
    report = replace(samples.GOOD, anatomy=replace(anatomy, leaves=leaves))

    assert "No tensor that was looked at is pageable" in seen_of(report)
    assert "are pinned" not in seen_of(report)


def test_refusal_does_not_advise_what_it_refuses():
    """Where pinning would not fit, nobody is told to pin."""
    assert "pin_memory=True" not in text_of(samples.REFUSED_RAM)
    assert "pin_memory=True" not in text_of(samples.NO_GAIN)


LEAVES = st.builds(
    Leaf,
    st.text(max_size=12),
    st.text(max_size=8),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    nbytes=st.integers(0, 10**12),
    contiguous=st.none() | st.booleans(),
    pinned=st.sampled_from(Pinned),
    why=st.none() | st.sampled_from(WhyPageable),
    holder=st.none() | st.text(max_size=5),
    same_as=st.none() | st.text(max_size=5),
)


@patient
@given(st.lists(LEAVES, max_size=14), st.integers(0, 3), st.sampled_from(State))
def test_any_batch_is_drawn(leaves, left_out, state):
    """A tensor of unknown memory is never called pinned."""
    anatomy = Anatomy("dict", tuple(leaves), left_out)

    drawing = draw(replace(samples.DIAGNOSED, anatomy=anatomy, state=state))

    assert_numbers_agree(drawing)
    if left_out or {leaf.pinned for leaf in leaves} != {Pinned.PINNED}:
        assert not re.search(
            r"tensors? of a batch \(.*\) (is|are) pinned", drawing.title
        )


# ----------------------------------------------------------------------- rates


def test_four_ways_to_copy_are_told_with_their_share_of_the_link():
    """Of what the link reached here, and of what the standard allows."""
    rows = rows_of(samples.DIAGNOSED, "Copying a batch")

    assert [(row["From"], row["Call"]) for row in rows] == [
        ("pageable", "blocking"),
        ("pageable", "non_blocking"),
        ("pinned", "blocking"),
        ("pinned", "non_blocking"),
    ]
    assert rows[3]["Host held"] == "11.0 us"
    assert rows[3]["Rate"] == "53.2 GB/s"
    assert (rows[3]["Of the ceiling"], rows[3]["Of theory"]) == ("96.1 %", "84.4 %")


def test_what_the_device_took_may_be_unknown():
    """Without events there is no rate, and no share."""
    copies = tuple(replace(each, device=None) for each in samples.RATES.copies)
    rates = replace(samples.RATES, copies=copies, link=None)

    (row, *_) = rows_of(replace(samples.DIAGNOSED, rates=rates), "Copying a batch")

    assert (row["Done after"], row["Rate"]) == ("not measured", "not measured")
    assert (row["Of the ceiling"], row["Of theory"]) == ("unknown", "unknown")


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.BAD_LINK, "PCIe Gen4 x4; the device could have Gen5 x16; 7.88 GB/s"),
        (samples.BAD_LINK, "numactl --cpunodebind=1"),
        (samples.ON_GH200, "NVLink-C2C; 450 GB/s one way in theory"),
        (samples.DIAGNOSED, "9.10 ms; 16.9 GB/s; one thread, reused memory, measured"),
        (samples.DIAGNOSED, "loading: 9.80 ms, from 9.41 ms to 10.2 ms (21 samples)"),
        (samples.BY_PARTS, "85.3 ms a batch in a loop of matrix products, a stand-in"),
        (samples.NO_ACCELERATOR, "loading: 9.80 ms a batch with 4 workers; 15.7 GB/s"),
    ],
)
def test_what_must_be_said_of_rates_is_said(report, said):
    """Each machine has its words."""
    assert said in text_of(report)


# ----------------------------------------------------------- guard and workers


def test_limits_that_are_fine_are_behind_a_click():
    """Those that warn are in sight, with what to do; those that refuse in a table."""
    loud = rows_of(samples.FIXED_CUSTOM, "What it takes of the machine")

    assert "needed" not in seen_of(samples.FIXED)
    assert "2.50 GiB needed, 8.00 GiB available" in seen_of(samples.FIXED_CUSTOM)
    assert "What it takes of the machine" in seen_of(samples.REFUSED_RAM)
    assert loud[0]["Verdict"].word == "warn"
    assert (loud[0]["Needed"], loud[0]["Share"]) == ("2.50 GiB", "31.2 %")


def test_unknown_limit_is_not_no_limit():
    """A limit that could not be read is unknown; one that is not set is none."""
    rows = rows_of(samples.FIXED_CUSTOM, "What it takes of the machine")

    assert [row["Available"] for row in rows] == ["8.00 GiB", "unknown", "no limit"]


@patient
@given(
    st.lists(
        st.builds(
            Limit,
            st.sampled_from(LimitKind),
            st.none() | st.integers(0, 10**13),
            st.none() | st.integers(0, 10**13),
            st.sampled_from(Severity),
        ),
        max_size=5,
    )
)
def test_any_limits_are_drawn(limits):
    """Whatever runs out, the title can say it."""
    guard = Guard(1, 1, tuple(limits))

    assert_numbers_agree(draw(replace(samples.REFUSED_RAM, guard=guard)))


def test_chosen_number_of_workers_is_marked_in_words():
    """With how fast it loads, and what memory it takes."""
    rows = rows_of(samples.FIXED_WITH_WORKERS, "Loading by number")

    chosen = [row for row in rows if "chosen" in row["Workers"]]
    assert [row["Workers"] for row in chosen] == ["8 (chosen)"]
    assert chosen[0]["Batches a second"].text == "89.3"
    assert chosen[0]["Memory of their own"] == "720 MiB"


def test_failed_trials_are_told():
    """A number of workers that failed has no speed, and its reason below."""
    rows = rows_of(samples.BAD_SEARCH, "Loading by number")

    assert rows[1]["Batches a second"] == "failed"
    assert rows[2]["A batch"] == "not measured"
    assert "with 1 worker: the worker was killed" in text_of(samples.BAD_SEARCH)


@patient
@given(
    st.lists(
        st.builds(
            WorkerTrial,
            st.integers(0, 64),
            st.none() | st.builds(Loading, TIMES, st.integers(0, 64)),
            st.none() | st.integers(0, 10**11),
        ),
        max_size=6,
    ),
    st.none() | st.integers(0, 64),
)
def test_any_search_is_drawn(trials, chosen):
    """Also one in which nothing was measured."""
    search = WorkerSearch(tuple(trials), chosen, samples.SEARCH.stopped)

    drawing = draw(replace(samples.NO_ACCELERATOR, workers=search, out="new"))

    assert_numbers_agree(drawing)


# ----------------------------------------------------------------------- proof


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            samples.FIXED,
            "yes, in value, order and class; compared: the first 8 batches",
        ),
        (samples.FIXED, "torch, numpy and the sampler's generator"),
        (samples.FIXED, "arrived unchanged under a delayed copy; watched: 8 batches"),
        (samples.FIXED_CUSTOM, "compared: all 1251 batches"),
        (samples.FIXED_CUSTOM, "pins what torch's pinner passes through"),
        (samples.FIXED_WITH_WORKERS, "its values are random"),
        (samples.FIXED_WITH_WORKERS, "yes, in order and class; compared: the first 8"),
        (samples.FIXED_UNMEASURED, "Batches of both were not compared."),
        (samples.FIXED_UNCLEAR, "was not measured: there is no stream to delay"),
        (samples.FIXED_DAMAGED, "batch[0] of batch 2, batch[0] of batch 3"),
        (samples.FIXED_DAMAGED, "and 2 more"),
        (samples.NOT_THE_SAME, "no: batch 2: batch[1] has 255 values instead of 256"),
        (samples.WRAPPED_ONLY, "wrapped as it is (NeighborLoader): its arguments are"),
        (samples.UNTOUCHED, "could not be told: the dataset failed in batch 0"),
    ],
)
def test_what_must_be_said_of_the_proof_is_said(report, said):
    """What was compared, and how far that goes."""
    assert said in text_of(report)


def test_changed_arguments_are_told_before_and_after():
    """Nothing is changed in silence."""
    rows = rows_of(samples.FIXED, "Changed arguments")

    assert [tuple(row.values()) for row in rows] == [
        ("pin_memory", "False", "True"),
        ("num_workers", "4", "8"),
        ("persistent_workers", "False", "True"),
    ]


def test_reuse_that_was_not_looked_at_is_no_proof():
    """Equal addresses alone are a hint, and are called that."""
    report = replace(samples.FIXED, reuse=ReuseCheck(8, ("batch[0]",), damaged=None))

    assert "the same addresses come again" in text_of(report)
    assert "overwritten" not in draw(report).title


# ----------------------------------------------------------------------- watch


def test_first_wait_stands_apart():
    """It has the start of the workers; the median is of the others."""
    (row,) = rows_of(samples.WATCHED, "Waits for data")

    assert (row["First"], row["Median"], row["Longest"]) == (
        "620 ms",
        "31.0 ms",
        "40.3 ms",
    )
    (curve,) = parts_of(samples.WATCHED, Sparkline)
    assert max(curve.values) < 0.1
    assert row["Loader"] == "train_dl (4 workers, not pinned)"
    assert row["Loop"] == "In [12], line 3: for x, y in train_dl:"


def test_lines_that_hold_the_host_are_in_one_table():
    """Waits and copies side by side, the longest first: what to mend is on top."""
    rows = rows_of(samples.WATCHED, "Lines that the host waits in")

    assert [row["Host held"] for row in rows] == ["1.33 s", "341 ms", "1.20 ms"]
    assert rows[0]["What"] == "waits for train_dl"
    assert rows[1]["What"] == "copies 3.45 GiB, pageable"


def test_copies_are_told_by_line():
    """With their bytes, where those came from, and how long they held the host."""
    first, second = rows_of(samples.WATCHED, "Copies to a device")

    assert first["Line"] == "In [12], line 4: x = x.to(device)"
    assert (first["Copies"], first["Blocking"], second["Blocking"]) == ("24", "24", "0")
    assert (first["Pageable"], first["Host held"]) == ("3.45 GiB", "341 ms")


def test_unknown_of_a_copy_is_unknown():
    """Not zero bytes, not zero calls."""
    first, _ = rows_of(samples.UNTRACED_WATCH, "Copies to a device")

    assert (first["Blocking"], first["Pageable"]) == (None, None)
    assert first["Host held"] == "not measured"
    assert "kernels running not measured" in text_of(samples.UNTRACED_WATCH)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.WATCHED, "-> %pin_loader train_dl, then x.to(device, non_blocking=T"),
        (samples.WATCHED, "11.0 of 338 ms"),
        (samples.UNTRACED_WATCH, "no line of the cell"),
        (samples.UNTRACED_WATCH, "already running -> end it before the cell"),
        (samples.SIMULATED_WATCH, "on the device's clock 810 ms"),
        (samples.SIMULATED_WATCH, "those of the simulated H100 SXM"),
        (samples.RACING, "while a copy still reads it (7 times)"),
        (samples.FAILED_WATCH, "The code failed: ValueError: Expected more than"),
        (samples.MANY_LINES, "... and 18 more"),
        (samples.MANY_LINES, "... and 46 more"),
        (samples.NO_TIME, "waiting for data 0 of 0 s"),
    ],
)
def test_what_must_be_said_of_a_watched_cell_is_said(report, said):
    """Each cell has its words."""
    assert said in text_of(report)


@patient
@given(
    SECONDS,
    SECONDS,
    st.lists(st.builds(DataWait, st.text(max_size=6), st.none(), TIMES), max_size=3),
    st.lists(
        st.builds(
            CopyLine,
            st.none(),
            st.integers(0, 99),
            st.integers(0, 10**12),
            st.none() | st.integers(0, 10**12),
            st.none() | st.integers(0, 99),
            st.none() | SECONDS,
        ),
        max_size=3,
    ),
    st.tuples(*[st.none() | SECONDS] * 3),
)
def test_any_watched_cell_is_drawn(elapsed_s, host_s, waits, copies, traced):
    """Whatever was seen, both forms tell the same."""
    report = WatchReport(
        samples.CELL,
        samples.H100,
        elapsed_s,
        host_s,
        tuple(copies),
        tuple(waits),
        *traced,
    )

    assert_numbers_agree(draw(report))


# ------------------------------------------------------------- whole and in part


@patient
@given(st.sampled_from(State), st.data())
def test_report_is_drawn_however_far_it_came(state, data):
    """Each part may be missing, in each state."""
    full = replace(samples.FIXED, workers=samples.SEARCH, reason=Remark("why", "do"))
    missing = data.draw(st.sets(st.sampled_from(LATER)))
    empty = dict.fromkeys(missing)
    rates = data.draw(st.sampled_from([Rates(), samples.LOAD_ONLY, samples.RATES]))

    drawing = draw(replace(full, state=state, rates=rates, **empty))

    assert_survives(drawing.html())
    assert_numbers_agree(drawing)
    assert "None" not in drawing.text(2000)


def test_pairs_may_be_missing():
    """A comparison that was broken off has no bars of its own."""
    broken = replace(samples.FASTER.result, pairs=())
    report = replace(samples.FIXED, end_to_end=EndToEnd(broken, 0, "old", "new"))

    (bars,) = parts_of(report, Stacks)
    assert "estimated" in bars.caption
