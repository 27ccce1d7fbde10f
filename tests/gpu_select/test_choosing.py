"""Which GPUs are chosen, and why each other is not."""

import pytest

from gpumagic.devices.protocols import Inventory, MigSlice
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.choice import everything
from gpumagic.gpu_select.machine import Place, places
from tests.gpu_select.free_ones import choose, numbers, refusal, said
from tests.gpu_select.machines import GIB, SLICES, UUIDS, gpu, lost, machine, sliced

# ---------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_util": 30}, "50 % busy, at most 30 % asked for"),
        ({"name": "a100"}, "it is of model Tesla T4, a100 asked for"),
        ({"exclude": "GPU-11111111-a"}, "excluded"),
        ({"exclude": 0}, "excluded"),
        ({"allowed": [Place(gpu(1))]}, "outside of what this kernel was given"),
        ({"claimed": {UUIDS[0]: "pid 4242, 3 min ago"}}, "claimed by pid 4242, 3 min"),
    ],
)
def test_what_is_not_wanted_is_refused_by_name(options, why):
    """Each filter, limit and claim refuses a GPU and is the reason given."""
    first = gpu(0, utilisation_share=0.5, name="Tesla T4")
    second = gpu(1, utilisation_share=0.3, name="NVIDIA A100")
    choice = choose(machine(first, second), **options)
    assert numbers(choice) == [1]
    assert why in said(choice.opinions)[0]


def test_unknown_utilisation_passes_a_limit_and_issaid():
    """--max-util does not refuse a GPU that cannot tell how busy it is."""
    choice = choose(machine(gpu(0, utilisation_share=None)), max_util=0)
    assert "utilisation unknown" in said(choice.opinions)[0]


def test_excluding_a_gpu_excludes_its_slices():
    """The number of a GPU in MIG mode stands for all of its slices there."""
    error = refusal(machine(sliced(2)), exclude="2")
    assert [each.why for each in error.opinions] == ["excluded", "excluded"]


def test_excluding_what_is_not_there_is_an_error():
    """A misspelt exclusion is not passed over."""
    with pytest.raises(GpuMagicError, match="there is no GPU 9"):
        choose(machine(), exclude="9")


# ---------------------------------------------------------------- fewer than asked


def test_too_few_are_an_error_with_a_reason_for_each():
    """The error counts, offers ways out, and has an opinion on every place."""
    there = machine(gpu(0, pids=[7]), gpu(1), lost(2))
    error = refusal(there, n=2)
    assert error.problem == (
        "2 GPUs were asked for, 1 is free; GPU 2 is out of reach: this GPU is lost"
    )
    assert all(way in error.hint for way in ("-n 1", "--wait 10m", "--min-free"))
    assert [each.place for each in error.opinions] == list(places(there))
    assert not any(each.taken for each in error.opinions)


@pytest.mark.parametrize(
    ("options", "problem", "way", "none_of"),
    [
        ({}, "1 GPU was asked for, none is free", "--wait", "-n"),
        ({"min_free": "70GiB"}, "none fits", "less for --min-free", "--mine-ok"),
        ({"min_free": "200GiB"}, "none fits", "as the largest has 80.0 GiB", "--wait"),
        ({"n": 3}, "none is free", "to see what there is", "--wait"),
        ({"max_util": 1}, "none fits", "--wait", "--force"),
        ({"allowed": []}, "none is free", "to see what there is", "--force"),
        ({"claimed": {UUIDS[0]: "x"}, "min_free": 0}, "none fits", "--wait", "less"),
        ({"name": "T4", "min_free": 0}, "none fits", "less to filter by", "--wait"),
        ({"allowed": [], "min_free": 0}, "none fits", "--force", "--wait"),
    ],
)
def test_the_way_out_fits_the_reason(options, problem, way, none_of):
    """What is offered would help against what stood in the way."""
    busy = gpu(0, used_gib=40, pids=[7], utilisation_share=0.5)
    idle = gpu(1, pids=[8])
    error = refusal(machine(busy) if options else machine(busy, idle), **options)
    assert problem in error.problem
    assert way in error.hint
    assert none_of not in error.hint


def test_a_machine_out_of_reach_has_nothing_free():
    """If no GPU answers, the error tells what is wrong with each."""
    error = refusal(machine(lost(0), lost(1)))
    assert error.problem.count("this GPU is lost") == 2


def test_without_gpus_there_is_nothing_to_choose():
    """A machine without GPUs is the driver's problem, not one of too few."""
    with pytest.raises(GpuMagicError, match="no NVIDIA GPU"):
        choose(Inventory())
    with pytest.raises(GpuMagicError, match="no NVIDIA GPU"):
        everything(Inventory(), None)


# ---------------------------------------------------------------- all


def test_all_keeps_the_order_of_the_limit():
    """All means all that the kernel was given, in the order it was given."""
    limit = [Place(gpu(2)), Place(gpu(0, used_gib=1))]
    assert numbers(everything(machine(), limit)) == [2, 0]
    assert numbers(everything(machine(), None)) == [0, 1, 2, 3]


def test_all_is_what_one_process_can_see():
    """Whole GPUs come without slices; among slices the first is taken."""
    assert numbers(everything(machine(sliced(2), gpu(0)), None)) == [0]
    choice = everything(machine(sliced(2)), None)
    assert [place.part for place in choice.places] == [0]
    assert [each.taken for each in choice.opinions] == [True, False]
    assert "name it" in choice.opinions[1].why


@pytest.mark.parametrize(
    ("inventory", "allowed", "hint"),
    [(machine(), [], "--force"), (machine(lost(0)), None, "reboot")],
)
def test_all_of_nothing_is_an_error(inventory, allowed, hint):
    """Without a GPU that may and can be used, all names none."""
    with pytest.raises(GpuMagicError) as caught:
        everything(inventory, allowed)
    assert hint in caught.value.hint


# ---------------------------------------------------------------- slices


def test_slices_are_free_places_for_one():
    """A slice of enough memory may be taken, if no whole GPU is free."""
    choice = choose(machine(gpu(0, used_gib=40), sliced(2)))
    assert [place.part for place in choice.places] == [0]
    error = refusal(machine(sliced(2)), min_free="30GiB")
    assert [each.why for each in error.opinions] == [
        "10.0 GiB in all, 30.0 GiB asked for",
        "20.0 GiB in all, 30.0 GiB asked for",
    ]


def test_a_whole_gpu_goes_before_a_slice_that_equals_it():
    """Of places with the same figures the whole GPU is taken."""
    part = MigSlice("MIG-c", 1, 0, 80 * GIB, memory_free_bytes=80 * GIB)
    blank = {"processes": None, "utilisation_share": None}
    there = machine(sliced(0, [part]), gpu(1, **blank))
    assert numbers(choose(there)) == [1]


def test_several_are_never_slices():
    """Asked for two, slices are refused, and one is offered."""
    error = refusal(machine(sliced(2)), n=2)
    assert all("one process sees one slice" in each.why for each in error.opinions)
    assert "-n 1" in error.hint
    assert numbers(choose(machine(gpu(0), gpu(1), sliced(2)), n=2)) == [0, 1]


def test_the_memory_of_a_slice_is_its_own():
    """A slice in use is refused by its own figures, a free one is taken."""
    full, empty = (
        MigSlice(part.uuid, 1, 0, 10 * GIB, (10 - used) * GIB, used * GIB)
        for part, used in zip(SLICES, (6, 0), strict=True)
    )
    choice = choose(machine(sliced(2, [full, empty])))
    assert [place.part for place in choice.places] == [1]
    assert "6.00 of 10.0 GiB in use" in choice.opinions[0].why
