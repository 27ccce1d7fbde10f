"""Free GPUs: the best that fit, ties by chance, and why each other is not taken."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices.protocols import Inventory, MigSlice
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.choice import NotEnough, everything
from gpumagic.gpu_select.free_gpus import freest
from gpumagic.gpu_select.machine import Place, places
from gpumagic.gpu_select.options import Options
from gpumagic.gpu_select.request import read
from tests.fakes.run import run_python
from tests.gpu_select.machines import (
    GIB,
    SLICES,
    TOTAL,
    UUIDS,
    choose,
    gpu,
    lost,
    machine,
    numbers,
    refusal,
    said,
    sliced,
)

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


def _choose(inventory, *, pick=max, **options):
    return choose(inventory, pick=pick, **{"min_free": 0} | options)


def _said(choice):
    return said(choice.opinions)


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (gpu(0, 20), gpu(1, 10, pids=[7], utilisation_share=1.0)),
        (gpu(0, 10, pids=[7]), gpu(1, 10.7, utilisation_share=1.0)),
        (gpu(0, 10, pids=[7, 8]), gpu(1, 10, pids=[7])),
        (gpu(0, 10, processes=None), gpu(1, 10, pids=[7])),
        (gpu(0, utilisation_share=0.2), gpu(1, utilisation_share=0.1)),
        (gpu(0, utilisation_share=None), gpu(1, utilisation_share=1.0)),
        (gpu(0, memory_free_bytes=None), gpu(1, 70, pids=[7])),
    ],
)
def test_memory_then_processes_then_utilisation(worse, better):
    """More free memory wins unless it is noise; then processes, then utilisation."""
    choice = _choose(machine(worse, better), pick=min)
    assert numbers(choice) == [1]
    assert "free as well, but behind GPU 1" in _said(choice)[0]


def test_equals_are_drawn_and_it_is_said():
    """Among true equals chance decides, and both sides say so."""
    there = machine(gpu(0), gpu(1), gpu(2, pids=[7]), gpu(3, 0.1))
    choice = _choose(there)
    assert numbers(choice) == [3]
    assert _said(choice)[3].endswith("equal to GPUs 0 and 1; taken at random")
    assert _said(choice)[0].endswith("equal to GPU 3, which was taken at random")
    assert "behind GPU 3" in _said(choice)[2]


def test_chance_is_not_asked_where_it_decides_nothing():
    """All equals are taken by number if all are wanted."""

    def never(*_, **__):
        pytest.fail("nothing is to be decided")

    choice = _choose(machine(), n=4, pick=never)
    assert numbers(choice) == [0, 1, 2, 3]
    assert not any("random" in why for why in _said(choice).values())


def test_some_of_the_equals_are_drawn_and_put_in_order():
    """Of four equals two are drawn, and the lower number comes first."""
    choice = _choose(machine(), n=2)
    assert numbers(choice) == [2, 3]
    assert "equal to GPUs 2 and 3, which were taken at random" in _said(choice)[0]


used = st.none() | st.floats(0, 80)
shares = st.none() | st.integers(0, 100).map(lambda percent: percent / 100)
process_lists = st.none() | st.integers(0, 3)


@st.composite
def machines(draw):
    """One to four GPUs, of which anything may be unknown."""
    gpus = []
    for index in range(draw(st.integers(1, 4))):
        used_gib, count = draw(used), draw(process_lists)
        made = gpu(
            index,
            used_gib or 0,
            pids=range(1, 1 + (count or 0)),
            utilisation_share=draw(shares),
        )
        unknown = {} if used_gib is not None else _UNKNOWN_MEMORY
        unlisted = {} if count is not None else {"processes": None}
        gpus.append(made.__class__(**vars(made) | unknown | unlisted))
    return machine(*gpus)


_UNKNOWN_MEMORY = {"memory_free_bytes": None, "memory_used_bytes": None}


@given(machines(), st.integers(1, 4), st.randoms())
@settings(deadline=None)
def test_no_place_that_is_left_is_clearly_better(inventory, count, chance):
    """As many are taken as asked for, and none left has more memory beyond noise."""
    request = read("free", Options(n=count, min_free=0))
    there = len(inventory.gpus)

    def choose_some():
        return freest(
            request,
            inventory,
            allowed=None,
            claimed={},
            is_mine=lambda _: None,
            pick=chance.choice,
        )

    if count > there:
        with pytest.raises(NotEnough, match=f"{there} fit"):
            choose_some()
        return
    choice = choose_some()
    taken = [place.gpu for place in choice.places]
    left = [each for each in inventory.gpus if each not in taken]
    assert len(taken) == len(set(taken)) == count
    for place, rest in ((t, r) for t in taken for r in left):
        if rest.memory_free_bytes is None:
            continue
        assert place.memory_free_bytes is not None
        assert place.memory_free_bytes >= rest.memory_free_bytes - TOTAL / 100 - 1


@given(machines(), st.integers(0, 80), st.integers(0, 80))
@settings(deadline=None)
def test_asking_for_more_memory_never_finds_more(inventory, some, more):
    """A GPU that fits a larger need fits a smaller one."""
    low, high = sorted((some * GIB, more * GIB))

    def refused(need):
        try:
            _choose(inventory, min_free=need, n=4)
        except NotEnough as error:
            opinions = error.opinions
        else:
            return set()
        return {each.place for each in opinions if "asked for" in each.why}

    assert refused(low) <= refused(high)


SNIPPET = """
    import json
    from gpumagic.devices.nvml import read_inventory
    from gpumagic.gpu_select.choice import NotEnough
    from gpumagic.gpu_select.free_gpus import freest
    from gpumagic.gpu_select.variables import mask_for as written
    from gpumagic.gpu_select.options import Options
    from gpumagic.gpu_select.request import read

    inventory = read_inventory()
    try:
        choice = freest(
            read("free", Options(**{options!r})),
            inventory,
            allowed=None,
            claimed={{}},
            is_mine=lambda pid: None,
            pick=min_by_number,
        )
        mask = written(choice.places, inventory, form=None, mps=False).value
    except NotEnough as error:
        choice, mask = error, error.problem
    print(json.dumps([mask, [each.why for each in choice.opinions]]))
"""
PICK = """
    def min_by_number(places):
        return min(places, key=lambda place: place.gpu.index)
"""


@pytest.mark.parametrize(
    ("scenario", "options", "mask", "said"),
    [
        ("four_gpus", {"n": 2}, "1,3", "40.0 of 79.6 GiB in use"),
        ("four_gpus", {"n": 3}, "3 GPUs were asked for, 2 are free", "2 processes"),
        ("container_foreign_pids", {}, "none is free", "that are not listed"),
        ("container_foreign_pids", {"min_free": "60GiB"}, "2", "60.0 GiB asked for"),
        ("wsl", {}, "none is free", "processes that are not listed"),
        ("wsl", {"min_free": "1GiB"}, "0", "processes not listed"),
        ("nothing_supported", {}, "0", "free memory unknown"),
        ("mixed_models", {"name": "t4"}, "GPU-44440044-", "NVIDIA RTX A6000"),
        ("no_permission", {}, "GPU-11111111-bbbb-", "no processes"),
        ("gpu_lost", {"n": 16}, "is out of reach", "fits"),
        ("mig_with_holes", {"n": 2}, "1,3", "one process sees one slice"),
        ("mig_with_holes", {"exclude": "0,1,3"}, "MIG-", "unknown"),
    ],
)
def test_the_free_ones_of_a_machine(scenario, options, mask, said):
    """What NVML tells of a machine is enough to choose well, and starts nothing."""
    run = run_python(PICK + SNIPPET.format(options=options), scenario=scenario)
    written, opinions = run.json()
    assert mask in written
    assert any(said in why for why in opinions), opinions
    assert run.cuinit_calls() == []


def test_a_gpu_of_unknown_model_is_not_the_model_that_was_asked_for():
    """Who asks for an H100 is not given a GPU that does not say what it is."""
    nameless = gpu(0, name=None)

    assert numbers(choose(machine(nameless, gpu(1)), name="h100")) == [1]
    error = refusal(machine(nameless), name="h100")
    assert "its model is unknown" in said(error.opinions)[0]
