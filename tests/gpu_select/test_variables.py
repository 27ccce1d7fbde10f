"""Variables in every place, set all or none, and masks that mean what was chosen."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpumagic.devices.protocols import Gpu, Inventory, MigSlice
from gpumagic.devices.visibility import seen_under
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.machine import places
from gpumagic.gpu_select.report import Variable
from gpumagic.gpu_select.variables import (
    changed,
    look_up,
    mask_for,
    remarks,
)
from tests.gpu_select.machines import UUIDS, gpu, machine, sliced

NAME = "GPUMAGIC_TEST_VARIABLE"
OTHER = "GPUMAGIC_TEST_OTHER"
FOUR = machine()
VALUES = st.none() | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=8
)


@pytest.fixture(autouse=True)
def _no_traces():
    """The two names are in neither environment, before and after."""
    yield
    for name in (NAME, OTHER):
        os.environ.pop(name, None)
        os.unsetenv(name)


def everywhere(name=NAME):
    """The value in Python, and the one in C."""
    variable = look_up(name)
    return variable.python, variable.c


def arrange(name, python, c):
    """A variable that has been put into Python's and into C's environment."""
    if python is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = python
    if c is None:
        os.unsetenv(name)
    else:
        os.putenv(name, c)


def interrupted(values):
    """What is set in the block, which the user interrupts."""
    seen = []
    with contextlib.suppress(KeyboardInterrupt), changed(values):
        seen += everywhere()
        raise KeyboardInterrupt
    return tuple(seen)


# ---------------------------------------------------------------- changing


@hypothesis_settings(deadline=None)
@given(VALUES, VALUES, VALUES)
def test_whatever_was_there_is_back_after_a_failure(python, c, new):
    """Python's and C's value come back exactly, also where they differ."""
    arrange(NAME, python, c)

    seen = interrupted({NAME: new, OTHER: "1"})

    assert seen == (new, new)
    assert (everywhere(), everywhere(OTHER)) == ((python, c), (None, None))


def written(numbers, inventory, *, mps=False):
    """The value that shows these GPUs, and why it holds UUIDs."""
    there = {place.gpu.index: place for place in places(inventory)}
    return mask_for([there[number] for number in numbers], inventory, mps=mps)


def test_under_mps_uuids_are_written():
    """The daemon numbers GPUs by itself; a UUID that is not known is an error."""
    assert written([1], machine(), mps=True)[0] == UUIDS[1]
    with pytest.raises(GpuMagicError, match="GPU 1 is not known"):
        written([1], machine(gpu(0), gpu(1, uuid=None)), mps=True)


@st.composite
def machines(draw):
    """Up to six GPUs in any order, some lost, some in MIG mode, some unknown."""
    count = draw(st.integers(1, 6))
    buses = draw(st.permutations(range(1, count + 1)))
    orderly = draw(st.booleans())
    gpus = []
    for index in range(count):
        bus = index + 1 if orderly else buses[index]
        slices = [MigSlice(f"MIG-{index}a", 1, 0, None)] * draw(st.integers(0, 1))
        kind = draw(st.sampled_from(["whole"] * 5 + ["lost", "sliced", "nowhere"]))
        gpus.append(
            Gpu(
                index,
                name=draw(st.sampled_from(["H100", "T4", None])),
                uuid=f"GPU-{index}{draw(st.sampled_from(['', '0', '1f']))}",
                pci_address=None if kind == "nowhere" else f"0000:{bus:02x}:00.0",
                problem="lost" if kind == "lost" else None,
                mig_enabled=kind == "sliced",
                mig=tuple(slices) if kind == "sliced" else (),
            )
        )
    return Inventory(gpus=tuple(gpus))


def _some_of(whole):
    drawn = st.tuples(st.permutations(whole), st.integers(0, len(whole)))
    return drawn.map(lambda each: tuple(each[0][: each[1]]))


@given(machines(), st.data(), st.booleans())
@settings(deadline=None, max_examples=300)
def test_what_is_written_is_what_will_be_seen(inventory, data, mps):
    """For any machine and choice, the prediction is exactly the choice, and certain."""
    there = places(inventory)
    whole = [place for place in there if not place.is_slice]
    slices = [(place,) for place in there if place.is_slice]
    chosen = data.draw(st.sampled_from([(), *slices]) | _some_of(whole))

    mask, _ = mask_for(chosen, inventory, mps=mps)

    seen = seen_under(mask, "PCI_BUS_ID", inventory)
    assert seen.certain
    assert seen.physical == tuple(place.gpu.index for place in chosen)
    assert seen.uuids == tuple(place.uuid for place in chosen)


# ---------------------------------------------------------------- what they are set to


def said(value, order="PCI_BUS_ID", *, there=FOUR, **known):
    """What is remarked, if no other is named on a machine with four GPUs."""
    variables = (
        Variable("CUDA_VISIBLE_DEVICES", value, value),
        Variable("CUDA_DEVICE_ORDER", order, order),
    )
    visible = replace(variables[0], **known)
    seen = seen_under(visible.c, order, there)
    return list(remarks(visible, variables[1], seen))


@pytest.mark.parametrize(
    ("value", "known", "kind", "text"),
    [
        ('"0,1"', {}, "problem", "it is neither a number nor a UUID"),
        ("0-2", {}, "warning", "what follows the number is overlooked"),
        ("", {"at_start": ""}, "problem", "an empty value hides every GPU"),
        (None, {"there": machine(sliced(0, ()))}, "note", "and has no slices"),
        ("0", {"c": "1"}, "warning", "'0' to Python and '1' to C"),
        ("0", {"at_start": "0"}, "note", "was started with"),
        ("0,0", {"at_start": "0,0"}, "problem", "hides every GPU"),
        ("0", {"order": "BY_PCI"}, "warning", "which CUDA does not know"),
    ],
)
def test_a_value_that_is_wrong_or_surprising_is_told(value, known, kind, text):
    """It is quoted with what the driver makes of it, and what to do."""
    (remark,) = said(value, **known)

    assert (remark.kind, bool(remark.next_step)) == (kind, True)
    assert text in remark.text
    assert ("--force" in remark.next_step) is ("at_start" in known)


@pytest.mark.parametrize("value", [None, "0", "2,0", "-1"])
def test_a_value_that_is_sound_is_not_spoken_of(value):
    """Nor is one that hides every GPU on purpose."""
    assert said(value) == []
