"""What CUDA_VISIBLE_DEVICES makes visible, by table and by a naive second reader."""

import itertools
import re
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpumagic.devices.protocols import Gpu, MigSlice
from gpumagic.devices.visibility import visible

UUIDS = (
    "GPU-11111111-aaaa-4aaa-8aaa-111111111111",
    "GPU-11111111-bbbb-4bbb-8bbb-111111111111",
    "GPU-22222222-cccc-4ccc-8ccc-222222222222",
    "GPU-33333333-dddd-4ddd-8ddd-333333333333",
)
FOUR = tuple(Gpu(index, uuid=uuid) for index, uuid in enumerate(UUIDS))

M0 = "MIG-aaaaaaaa-1111-4111-8111-aaaaaaaaaaaa"
M1 = "MIG-bbbbbbbb-2222-4222-8222-bbbbbbbbbbbb"
SLICES = (MigSlice(M0, 1, 0, None), MigSlice(M1, 2, 0, None))
SLICED = replace(FOUR[2], mig_enabled=True, mig=SLICES)
WITH_MIG = (*FOUR[:2], SLICED, FOUR[3])


# ---------------------------------------------------------------- four whole GPUs


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("2,1", (2, 1)),
        ("3,2,9,1", (3, 2)),
        ("-1", ()),
        ("0,1,0", ()),
        ("GPU-22222222", (2,)),
        (f"{UUIDS[3]},{UUIDS[0]}", (3, 0)),
        ("\N{ARABIC-INDIC DIGIT ONE}", ()),
        pytest.param("9" * 5000, (), id="thousands of digits"),
    ],
)
def test_what_drivers_agree_on_is_certain(mask, expected):
    """A value that every driver reads alike has one answer, in the order of cuda:k."""
    found = visible(mask, FOUR)

    assert found.physical == expected
    assert found.uuids == tuple(UUIDS[index] for index in expected)
    assert found.certain


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ("", "an empty value hides every GPU"),
        ("3,2,9,1", "the list ends at '9': there is no GPU of this number"),
        ("0,-1", "the list ends at '-1': it is negative"),
        ("0,,1", "the list ends at '': it is neither a number nor a UUID"),
        ("none", "the list ends at 'none': it is neither a number nor a UUID"),
        ("GPU-1", "the list ends at 'GPU-1': more than one GPU fits it"),
        ("GPU-9", "the list ends at 'GPU-9': no GPU or slice fits it"),
        ("GPU-2,x", "the list ends at 'x': it is of another kind than the first"),
        ("0,1,0", "'0' names a GPU again, which hides every GPU"),
        ("0-3", "'0-3': what follows the number is overlooked"),
        ("x" * 99, f"the list ends at '{'x' * 57}...': it is neither a number"),
    ],
)
def test_a_reason_names_the_entry_that_decided(mask, reason):
    """Where less is seen than is written, the entry is quoted and the rule told."""
    (only,) = visible(mask, FOUR).reasons

    assert only.startswith(reason)


# ---------------------------------------------------------------- slices


@pytest.mark.parametrize(
    ("mask", "uuids", "why"),
    [
        (None, (M0,), "slices and whole GPUs"),
        ("0,2", (M0,), "slices and whole GPUs"),
        (f"{M1},{M0}", (M1,), "1 MIG slice at most"),
        (f"{M1},0", (M1,), "otherwise"),
        (M1.upper(), (), "otherwise"),
        (f"MIG-{UUIDS[2]}/2/0", (), "otherwise"),
    ],
)
def test_slices_are_uncertain_where_drivers_are_not_known(mask, uuids, why):
    """More than one slice, slices among GPUs, and other names are doubtful."""
    found = visible(mask, WITH_MIG)

    assert (found.uuids, found.certain) == (uuids, False)
    assert why in " ".join(found.reasons)


# ---------------------------------------------------------------- a second reader


@dataclass(frozen=True)
class Habits:
    """What a driver may or may not do, as far as is known."""

    strips: bool = False
    folds_case: bool = False
    mixes: bool = False
    finds_base: bool = False
    wraps: bool = False
    refuses_minus_zero: bool = False


def kind(entry, habits):
    """What sort of name it is."""
    entry = entry.strip() if habits.strips else entry
    entry = entry.upper() if habits.folds_case else entry
    return entry[:4] if entry[:4] in ("GPU-", "MIG-") else "number"


def number_in(entry, habits):
    """The number that C's strtoul finds, one character after the other."""
    rest = entry.lstrip(" \t\n\v\f\r")
    sign = -1 if rest[:1] == "-" else 1
    rest = rest[1:] if rest[:1] in ("+", "-") else rest
    base, digits = 10, "0123456789"
    if habits.finds_base and re.match("0[xX][0-9a-fA-F]", rest):
        base, digits, rest = 16, "0123456789abcdefABCDEF", rest[2:]
    elif habits.finds_base and rest[:1] == "0":
        base, digits = 8, "01234567"
    read = "".join(itertools.takewhile(lambda letter: letter in digits, rest))
    if not read or (habits.refuses_minus_zero and sign < 0 and int(read, base) == 0):
        return None
    number = sign * int(read, base)
    return number % 2**32 if habits.wraps else number


def named_by(entry, habits):
    """The GPU that it names, if it names exactly one."""
    if kind(entry, habits) == "number":
        number = number_in(entry, habits)
        return number if number is not None and 0 <= number < 4 else None
    start = entry.strip() if habits.strips else entry
    if habits.folds_case:
        start = "GPU-" + start[4:].lower()
    fitting = [place for place, uuid in enumerate(UUIDS) if uuid.startswith(start)]
    return fitting[0] if len(fitting) == 1 else None


def read_naively(mask, habits):
    """The GPUs seen by a driver of these habits."""
    if not mask.strip():
        return ()
    found = []
    entries = mask.split(",")
    for entry in entries:
        same = kind(entry, habits) == kind(entries[0], habits)
        place = named_by(entry, habits) if same or habits.mixes else None
        if place is None:
            break
        found.append(place)
    return tuple(found) if len(set(found)) == len(found) else ()


STRICT = Habits()
ALL_HABITS = [Habits(*each) for each in itertools.product((False, True), repeat=6)]
STARTS = [uuid[:length] for uuid in UUIDS for length in (5, 8, 12, 14, 40)]
ENTRIES = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from([*STARTS, *[start.lower() for start in STARTS], "GPU-", "GPU-9"]),
    st.sampled_from(["", "+", "-", "-0", "+1", "0x1", "0x", "010", "08", "1x", "0-3"]),
    st.sampled_from(["2 3", "none", "MIG-1", "9" * 30, "4294967297", "-4294967295"]),
    st.text("0123x+- GPU", max_size=5),
)
PADDED = st.builds(
    "{}{}{}".format, st.sampled_from(["", "", " "]), ENTRIES, st.sampled_from(["", " "])
)


@settings(deadline=None, max_examples=300)
@given(st.lists(PADDED, min_size=1, max_size=5).map(",".join))
@example("0,0x0")
@example("1,0,+1")
def test_the_likely_answer_is_that_of_a_strict_reader(mask):
    """The answer is what the rules say, taken word for word."""
    assert visible(mask, FOUR).physical == read_naively(mask, STRICT)


@settings(deadline=None, max_examples=300)
@given(st.lists(PADDED, min_size=1, max_size=4).map(",".join))
@example("040000000001")
@example("GPU-2,4294967297")
@example("GPU-2, gpu-3")
def test_a_certain_answer_is_that_of_every_reader(mask):
    """What is called certain does not depend on any habit that drivers may have."""
    found = visible(mask, FOUR)

    if found.certain:
        assert {read_naively(mask, each) for each in ALL_HABITS} == {found.physical}
