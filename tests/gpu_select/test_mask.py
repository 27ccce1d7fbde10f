"""How a choice is written, so that CUDA reads just that choice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices.protocols import Gpu, Inventory, MigSlice
from gpumagic.devices.visibility import seen_under
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.machine import places
from gpumagic.gpu_select.variables import mask_for
from tests.gpu_select.machines import SLICES, UUIDS, gpu, lost, machine, sliced

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
