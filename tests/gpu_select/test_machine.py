"""Names of GPUs and slices mean one place each, or an error that says what to type."""

from __future__ import annotations

import pytest

from gpumagic.devices.protocols import Gpu, Inventory
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.choice import named
from gpumagic.gpu_select.machine import Place, places
from tests.gpu_select.machines import SLICES, UUIDS, gpu, lost, machine, sliced

MIXED = machine(gpu(0), gpu(1), sliced(2), gpu(3))
ONE_SLICE = machine(gpu(0), gpu(1), sliced(2, SLICES[:1]))


def _refusal(names, inventory=None, allowed=None):
    with pytest.raises(GpuMagicError) as caught:
        named(names, inventory or machine(), allowed)
    return caught.value


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("2", 2),
        ("GPU-2", 2),
        ("GPU-11111111-a", 0),
        ("GPU-11111111B", 1),
        ("gpu-33333333-DDDD4", 3),
        (UUIDS[1], 1),
        ("pci:3b", 1),
        ("pci:3b:00", 1),
        ("pci:3b:00.0", 1),
        ("pci:0000:3b:00.0", 1),
        ("pci:00000000:3B:00.0", 1),
        ("pci:1", 3),
        ("pci:f:1:0.0", 3),
    ],
)
def test_a_gpu_has_many_names(name, number):
    """A number, the beginning of a UUID and any spelling of an address mean a GPU."""
    choice = named([name], machine(), None)
    assert choice.places == (Place(gpu(number)),)
    (opinion,) = choice.opinions
    assert opinion.taken


@pytest.mark.parametrize(
    "name",
    [
        SLICES[1].uuid,
        "MIG-b",
        "mig-BBBB11112222",
        f"MIG-{UUIDS[2]}/2/0",
        "MIG-GPU-2222/2/0".replace("2222", UUIDS[2].removeprefix("GPU-")),
    ],
)
def test_a_slice_has_its_uuid_and_its_old_name(name):
    """A slice is found by the beginning of its UUID and by GPU and instances."""
    (place,) = named([name], MIXED, None).places
    assert (place.gpu.index, place.part) == (2, 1)


def test_the_order_of_names_is_the_order_of_devices():
    """The first name becomes cuda:0."""
    choice = named(["3", "0", "GPU-2"], machine(), None)
    assert [place.gpu.index for place in choice.places] == [3, 0, 2]


def test_a_whole_uuid_wins_over_a_longer_one():
    """A name in full is not ambiguous because another name begins with it."""
    slices = [SLICES[0], SLICES[1].__class__("MIG-aaaa", 3, 0, None)]
    (place,) = named(["MIG-aaaa"], machine(sliced(2, slices)), None).places
    assert place.part == 1


@pytest.mark.parametrize("name", ["2", "GPU-2", "pci:86"])
def test_a_gpu_in_mig_mode_means_its_only_slice(name):
    """Where there is no other slice to mean, naming the GPU is enough."""
    (place,) = named([name], ONE_SLICE, None).places
    assert (place.gpu.index, place.part) == (2, 0)


def test_a_gpu_with_several_slices_does_not_say_which():
    """The error lists the UUIDs, of which one is to be typed."""
    error = _refusal(["2"], MIXED)
    assert "2 slices" in error.problem
    assert all(part.uuid in error.hint for part in SLICES)


def test_a_gpu_without_slices_cannot_be_used():
    """MIG mode without a slice leaves nothing to choose."""
    assert "no slices" in _refusal(["2"], machine(gpu(0), sliced(2, ()))).problem


@pytest.mark.parametrize("name", ["GPU-1", "GPU-11111111"])
def test_an_ambiguous_beginning_names_the_candidates(name):
    """More than one fitting UUID is an error that shows them all."""
    error = _refusal([name])
    assert "GPUs 0 and 1" in error.problem
    assert UUIDS[0] in error.hint
    assert UUIDS[1] in error.hint


@pytest.mark.parametrize(
    ("name", "problem", "hint"),
    [
        ("7", "there is no GPU 7: this machine has 4 GPUs, GPUs 0, 1, 2 and 3", "type"),
        ("GPU-9", "no GPU has a UUID that begins 'GPU-9'", "GPU 3 (GPU-33333333)"),
        ("GPU-0", "no GPU has a UUID that begins 'GPU-0'", "type %gpu_select 0"),
        ("MIG-9", "no slice has a UUID that begins", "to see what there is"),
        ("pci:99", "no GPU is at pci:99", "GPU 1 at 0000:3b:00.0"),
        ("pci:0", "no GPU is at pci:0", "GPU 0 at 0000:18:00.0"),
        ("pci:3b.0", "is not a PCI address", "pci:3b:00.0"),
    ],
)
def test_a_name_of_nothing_says_what_there_is(name, problem, hint):
    """Out of range, unknown UUID, unknown address: the error shows those there are."""
    error = _refusal([name])
    assert problem in error.problem
    assert hint in error.hint


def test_a_uuid_that_is_not_known_might_have_been_meant():
    """A vain search admits which UUIDs it could not see."""
    error = _refusal(["GPU-3"], machine(gpu(0), gpu(1, uuid=None)))
    assert "the UUID of GPU 1 is not known" in error.problem


def test_an_address_may_be_that_of_two():
    """One bus number in two domains is ambiguous, and both are shown."""
    twins = machine(gpu(0), gpu(1, pci_address="0001:18:00.0"))
    error = _refusal(["pci:18:00.0"], twins)
    assert "more than one GPU is at pci:18:00.0" in error.problem
    assert "GPU 1 at 0001:18:00.0" in error.hint


@pytest.mark.parametrize("second", ["1", "GPU-11111111-b", "pci:3b"])
def test_a_gpu_named_twice_would_hide_all(second):
    """One GPU by two names of whatever form is refused, with what to type."""
    error = _refusal(["1", "0", second])
    assert "GPU 1 is named twice" in error.problem
    assert "%gpu_select 1,0" in error.hint


def test_a_gpu_out_of_reach_is_refused_with_its_own_reason():
    """Naming a GPU that does not answer gives its problem and its hint."""
    error = _refusal(["1"], machine(gpu(0), lost(1)))
    assert error.problem == "GPU 1 is out of reach: this GPU is lost"
    assert error.hint == "reboot"


def test_a_limit_is_kept_and_can_be_left():
    """What the kernel was not given is refused, though figures have changed since."""
    before = places(machine(gpu(0, used_gib=9), gpu(1, used_gib=9)))
    assert named(["1", "0"], machine(), before).places == (
        Place(gpu(1)),
        Place(gpu(0)),
    )
    error = _refusal(["0", "3"], allowed=before)
    assert error.problem == (
        "GPU 3 is outside of what this kernel was given (GPUs 0 and 1)"
    )
    assert "--force" in error.hint


def test_a_limit_to_one_slice_does_not_open_the_other():
    """Slices of one GPU are told apart by a limit."""
    error = _refusal([SLICES[1].uuid], MIXED, allowed=[Place(sliced(2), 0)])
    assert "outside" in error.problem


@pytest.mark.parametrize("names", [["MIG-a", "MIG-b"], ["0", "MIG-a"]])
def test_one_process_sees_one_slice(names):
    """Two slices, or a slice beside a whole GPU, are refused."""
    assert "cannot be had together" in _refusal(names, MIXED).problem


def test_without_gpus_the_driver_says_why():
    """On a machine without GPUs the inventory's own problem is the error."""
    nothing = Inventory(absent=True, problem="there is no driver", hint="install it")
    error = _refusal(["0"], nothing)
    assert error.problem == "there is no driver"
    assert error.hint == (
        "to work without one, type %gpu_select --simulate h100; install it"
    )
    assert "no NVIDIA GPU" in _refusal(["0"], Inventory()).problem


def test_the_only_gpu_needs_nothing_but_its_number():
    """A GPU of which nothing is known can still be named."""
    assert named(["0"], Inventory(gpus=(Gpu(0),)), None).places == (Place(Gpu(0)),)
