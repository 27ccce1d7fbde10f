"""Names of GPUs and slices mean one place each, or an error that says what to type."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.devices.protocols import Inventory
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.apply import everything, named
from gpumagic.gpu_select.machine import Place, places
from gpumagic.gpu_select.request import read
from tests.gpu_select.machines import SLICES, UUIDS, gpu, lost, machine, sliced

MIXED = machine(gpu(0), gpu(1), sliced(2), gpu(3))


def chosen(names, inventory=None, allowed=None):
    """The places that these names mean; all of the machine's for None."""
    there = SimpleNamespace(inventory=machine() if inventory is None else inventory)
    allowed = places(there.inventory) if allowed is None else allowed
    choice = (
        everything(there, allowed) if names is None else named(names, there, allowed)
    )
    return [(place.gpu.index, place.part) for place in choice.places]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("2", 2),
        ("GPU-2", 2),
        ("GPU-11111111-a", 0),
        ("GPU-11111111B", 1),
        ("gpu-33333333-DDDD4", 3),
        (UUIDS[1], 1),
    ],
)
def test_a_gpu_has_many_names(name, number):
    """A number and the beginning of a UUID, in any spelling, mean a GPU."""
    assert chosen(read(name).names) == [(number, None)]


def test_a_limit_is_kept_though_figures_have_changed_since():
    """What the kernel was given is one GPU or slice each, whatever is on it now."""
    before = places(machine(gpu(0, used_gib=9), gpu(1, used_gib=9)))
    assert chosen(["1", "0"], allowed=before) == [(1, None), (0, None)]


LIMIT = [Place(gpu(2)), Place(gpu(0, used_gib=1))]


@pytest.mark.parametrize(
    ("inventory", "allowed", "seen"),
    [
        (machine(), LIMIT, [(2, None), (0, None)]),
        (machine(), None, [(0, None), (1, None), (2, None), (3, None)]),
        (machine(sliced(2), gpu(0)), None, [(0, None)]),
        (machine(sliced(2)), None, [(2, 0)]),
    ],
)
def test_all_is_what_one_process_can_see_of_what_it_was_given(inventory, allowed, seen):
    """In the order of the limit; whole GPUs without slices, or the first slice."""
    assert chosen(None, inventory, allowed) == seen


NOTHING = Inventory(absent=True, problem="there is no driver", hint="install it")


@pytest.mark.parametrize(
    ("names", "inventory", "allowed", "problem", "hint"),
    [
        (["7"], None, None, "there is no GPU 7: this machine has GPUs 0, 1, 2", "type"),
        (["GPU-9"], None, None, "no GPU or slice has a UUID that begins", "type"),
        (["MIG-9"], MIXED, None, "has a UUID that begins 'MIG-9'", "type"),
        (["GPU-1"], None, None, "GPUs 0 and 1", UUIDS[1]),
        (["1", "0", UUIDS[1]], None, None, "GPU 1 is named twice", "once"),
        (["2"], MIXED, None, "2 slices", f" or {SLICES[1].uuid}"),
        (["2"], machine(sliced(2, ())), None, "no slices", "make a slice first"),
        (["1"], machine(gpu(0), lost(1)), None, "this GPU is lost", "reboot"),
        (["3"], None, LIMIT, "what this kernel was given (GPUs 2", "--force"),
        ([SLICES[1].uuid], MIXED, [Place(sliced(2), 0)], "outside of", "--force"),
        (["MIG-a", "MIG-b"], MIXED, None, "cannot be had together", "one slice"),
        (["0", "MIG-a"], MIXED, None, "cannot be had together", "one slice"),
        (["0"], NOTHING, None, "there is no driver", "install it; to work without"),
        (["0"], Inventory(), None, "no NVIDIA GPU", "%gpu_doctor"),
        (None, Inventory(), None, "no NVIDIA GPU", "%gpu_doctor"),
        (None, None, [], "was given no GPU of this machine", "--force"),
        (None, machine(lost(0)), None, "this GPU is lost", "%gpu_doctor"),
    ],
)
def test_what_cannot_be_had_says_why_and_what_to_type(
    names, inventory, allowed, problem, hint
):
    """Out of range, unknown, ambiguous, out of reach or out of the limit."""
    with pytest.raises(GpuMagicError) as caught:
        chosen(names, inventory, allowed)

    assert problem in caught.value.problem
    assert hint in caught.value.hint
