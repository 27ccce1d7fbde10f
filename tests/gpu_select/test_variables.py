"""Variables in every place, set all or none, and masks that mean what was chosen."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpumagic.devices.protocols import Gpu, Inventory, MigSlice
from gpumagic.devices.visibility import seen_under
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.machine import places
from gpumagic.gpu_select.variables import VISIBLE, at_start, changed, look_up, mask_for
from tests.gpu_select.machines import SLICES, UUIDS, gpu, lost, machine, sliced

NAME = "GPUMAGIC_TEST_VARIABLE"
OTHER = "GPUMAGIC_TEST_OTHER"
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
    assert variable.c_known
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


def in_a_process(code, **variables):
    """What a fresh process says that was started with these variables."""
    kept = {key: value for key, value in os.environ.items() if key != VISIBLE}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"PYTHONPATH": str(Path(__file__).parents[2])} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


# ---------------------------------------------------------------- looking up


def test_a_variable_that_is_not_set_is_none_and_not_empty():
    """Unset and empty mean all and none to CUDA, and are told apart."""
    assert everywhere() == (None, None)
    os.environ[NAME] = ""
    assert everywhere() == ("", "")


def test_what_python_sets_is_seen_in_c():
    """Whatever is put into os.environ reaches getenv."""
    os.environ[NAME] = "2,0"

    assert everywhere() == ("2,0", "2,0")


def test_what_putenv_sets_is_seen_in_c_alone():
    """os.putenv reaches the driver and not os.environ."""
    os.environ[NAME] = "2"
    os.putenv(NAME, "0")

    assert everywhere() == ("2", "0")


def test_a_value_that_is_no_text_survives():
    """Bytes that are no UTF-8 come out as os.environ has them."""
    os.environb[NAME.encode()] = b"\xff0"

    assert everywhere() == ("\udcff0", "\udcff0")


def test_where_c_cannot_be_asked_its_value_is_unknown(monkeypatch):
    """A system without dlopen leaves the C value unknown rather than unset."""

    def refuse(name):
        raise TypeError(name)

    monkeypatch.setattr(ctypes, "PyDLL", refuse)
    os.environ[NAME] = "2"

    variable = look_up(NAME)
    assert (variable.python, variable.c, variable.c_known) == ("2", None, False)


# ---------------------------------------------------------------- at the start


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_value_at_the_start_outlives_every_change():
    """What the process was started with is known after the variable has changed."""
    told = in_a_process(
        "import os; from gpumagic.gpu_select.variables import *;"
        "os.environ[VISIBLE] = '0';"
        "print(at_start(VISIBLE), look_up(VISIBLE).at_start)",
        CUDA_VISIBLE_DEVICES="2,3",
    )

    assert told == "(True, '2,3') 2,3"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_variable_that_came_later_was_not_there_at_the_start():
    """A variable that this process has made is known to have been unset."""
    os.environ[NAME] = "0"

    assert at_start(NAME) == (True, None)


@pytest.mark.parametrize("written", [b"", b"\0\0\0", b"my worker\0\0", None])
def test_where_the_start_cannot_be_read_it_is_unknown(written, tmp_path, monkeypatch):
    """No such file, or a process title written over it: unknown, and not unset."""
    place = tmp_path / "environ"
    if written is not None:
        place.write_bytes(written)
    monkeypatch.setattr("gpumagic.gpu_select.variables._AT_START", place)

    assert at_start(VISIBLE) == (False, None)


def test_only_the_whole_name_counts(tmp_path, monkeypatch):
    """A variable whose name begins with the one that is meant is another one."""
    place = tmp_path / "environ"
    place.write_bytes(b"CUDA_VISIBLE_DEVICES_OLD=1\0CUDA_VISIBLE_DEVICES=a=b\0")
    monkeypatch.setattr("gpumagic.gpu_select.variables._AT_START", place)

    assert at_start(VISIBLE) == (True, "a=b")


# ---------------------------------------------------------------- changing


def test_a_change_stays_when_the_block_ends():
    """Set, replaced and removed, in Python and in C."""
    os.environ[OTHER] = "1"

    with changed({NAME: "2", OTHER: None}):
        assert (everywhere(), everywhere(OTHER)) == (("2", "2"), (None, None))

    assert (everywhere(), everywhere(OTHER)) == (("2", "2"), (None, None))


def test_removing_reaches_a_value_that_only_c_has():
    """None removes also what os.putenv has put there."""
    os.putenv(NAME, "0")

    with changed({NAME: None}):
        assert everywhere() == (None, None)


@hypothesis_settings(deadline=None)
@given(VALUES, VALUES, VALUES)
def test_whatever_was_there_is_back_after_a_failure(python, c, new):
    """Python's and C's value come back exactly, also where they differ."""
    arrange(NAME, python, c)

    seen = interrupted({NAME: new, OTHER: "1"})

    assert seen == (new, new)
    assert (everywhere(), everywhere(OTHER)) == ((python, c), (None, None))


def test_a_value_that_cannot_be_set_leaves_none_of_the_others_set():
    """The first variable is put back where the second cannot hold its value."""
    os.environ[NAME] = "old"

    with pytest.raises(ValueError, match="null"), changed({NAME: "2", OTHER: "a\0b"}):
        pytest.fail("the block must not run")

    assert (everywhere(), everywhere(OTHER)) == (("old", "old"), (None, None))


BACKWARDS = machine(gpu(0, pci_address="b1"), gpu(1, pci_address="17"))


def _write(numbers, inventory, *, form=None, mps=False):
    chosen = [
        next(place for place in places(inventory) if place.gpu.index == number)
        for number in numbers
    ]
    return mask_for(chosen, inventory, form=form, mps=mps)


def _refusal(numbers, inventory, **options):
    with pytest.raises(GpuMagicError) as caught:
        _write(numbers, inventory, **options)
    return caught.value


def test_numbers_are_the_default():
    """Where a number means the same to all, numbers are written without a remark."""
    mask = _write([2, 0], machine())
    assert (mask.value, mask.order, mask.why) == ("2,0", "PCI_BUS_ID", "")


@pytest.mark.parametrize("form", [None, "index", "uuid"])
@pytest.mark.parametrize("inventory", [machine(), Inventory()])
def test_no_gpu_is_never_an_empty_value(inventory, form):
    """Nothing is written as -1, in whatever form."""
    assert mask_for((), inventory, form=form, mps=True).value == "-1"


@pytest.mark.parametrize(
    ("inventory", "why"),
    [
        (BACKWARDS, "CUDA numbers these GPUs otherwise than nvidia-smi"),
        (machine(gpu(0), gpu(1), lost(2)), "CUDA may not count GPU 2"),
        (machine(gpu(0), gpu(1, pci_address=None)), "a PCI address is not known"),
    ],
)
def test_uuids_where_a_number_would_be_ambiguous(inventory, why):
    """Where numbers are not safe UUIDs are written, and numbers are refused."""
    mask = _write([1, 0], inventory)
    assert mask.value == f"{UUIDS[1]},{UUIDS[0]}"
    assert why in mask.why
    error = _refusal([1], inventory, form="index")
    assert why in error.problem
    assert "--as uuid" in error.hint


def test_a_slice_is_written_by_its_uuid():
    """Slices have no numbers, so that asking for numbers is refused."""
    there = machine(gpu(0), gpu(1), sliced(2))
    mask = _write([2], there)
    assert mask.value == SLICES[0].uuid
    assert "slices" in mask.why
    assert "slices" in _refusal([2], there, form="index").problem


def test_under_mps_uuids_are_written():
    """The daemon numbers GPUs by itself; who asks for numbers is told so."""
    mask = _write([1], machine(), mps=True)
    assert mask.value == UUIDS[1]
    assert "MPS" in mask.why
    forced = _write([1], machine(), form="index", mps=True)
    assert forced.value == "1"
    assert "MPS" in forced.why


def test_uuids_on_request():
    """--as uuid writes UUIDs where numbers would do."""
    mask = _write([1], machine(), form="uuid")
    assert (mask.value, mask.why) == (UUIDS[1], "UUIDs, as asked for")


@pytest.mark.parametrize(
    ("inventory", "options", "hint"),
    [
        (machine(gpu(0), gpu(1, uuid=None)), {"form": "uuid"}, "--as index"),
        (machine(gpu(0), gpu(1, uuid=None)), {"mps": True}, "--as index"),
        (machine(gpu(0), gpu(1, uuid=None), lost(2)), {}, "choose another GPU"),
        (
            machine(sliced(1, [MigSlice(None, 1, 0, None)])),
            {},
            "choose another GPU",
        ),
    ],
)
def test_an_unknown_uuid_cannot_be_written(inventory, options, hint):
    """Where a UUID is needed and not known, the error says whose it is."""
    error = _refusal([1], inventory, **options)
    assert "GPU 1 is not known" in error.problem
    assert hint in error.hint


def test_an_unknown_form_is_an_error():
    """Only numbers and UUIDs can be written."""
    assert "--as uuid" in _refusal([0], machine(), form="pci").hint


def test_the_only_gpu_is_number_0_whatever_is_unknown():
    """A single GPU that tells nothing of itself stays selectable."""
    assert _write([0], Inventory(gpus=(Gpu(0),))).value == "0"


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


@given(machines(), st.data(), st.sampled_from([None, "index", "uuid"]), st.booleans())
@settings(deadline=None, max_examples=300)
def test_what_is_written_is_what_will_be_seen(inventory, data, form, mps):
    """For any machine and choice, the prediction is exactly the choice, and certain."""
    there = places(inventory)
    whole = [place for place in there if place.part is None]
    slices = [(place,) for place in there if place.part is not None]
    chosen = data.draw(st.sampled_from([(), *slices]) | _some_of(whole))
    try:
        mask = mask_for(chosen, inventory, form=form, mps=mps)
    except GpuMagicError:
        assert form == "index"
        return
    seen = seen_under(mask.value, mask.order, inventory)
    assert seen.certain
    assert seen.physical == tuple(place.gpu.index for place in chosen)
    assert seen.uuids == tuple(place.uuid for place in chosen)
