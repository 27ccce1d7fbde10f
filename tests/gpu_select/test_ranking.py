"""Which of the free places are the best, and what chance decides."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_select.choice import NotEnough
from gpumagic.gpu_select.free_gpus import freest
from gpumagic.gpu_select.request import read
from tests.gpu_select.free_ones import choose, numbers, said
from tests.gpu_select.machines import GIB, TOTAL, gpu, machine


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
    request = read("free", n=count, min_free=0)
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
