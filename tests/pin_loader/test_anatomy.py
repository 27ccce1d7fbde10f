"""What a batch consists of, what torch's pinner makes of it, and what it takes."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, deque
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch")

from torch.utils.data._utils import pin_memory as torch_pinning  # noqa: E402

from gpumagic.devices.cpu import CpuRuntime  # noqa: E402
from gpumagic.pin_loader.anatomy import (  # noqa: E402
    Memory,
    anatomy_of,
    limits_of,
    needed_bytes,
    passed_through_by,
)
from gpumagic.pin_loader.batch import parts_of  # noqa: E402
from gpumagic.pin_loader.records import (  # noqa: E402
    Anatomy,
    Leaf,
    LoaderFacts,
    Pinned,
    WhyPageable,
)
from tests.pin_loader.kinds import (  # noqa: E402
    Box,
    Graph,
    Pair,
    PinsItself,
    Plain,
    Sample,
    Sealed,
)

ON = LoaderFacts(pin_memory=True)
OFF = replace(ON, pin_memory=False)


class Gpu(CpuRuntime):
    """A GPU that has been started, for which nothing happens to be pinned."""

    kind = "cuda"


def anatomy(batch, facts=ON, runtime=None, **others):
    """What is to be said of a batch that a GPU is to get."""
    return anatomy_of(batch, runtime or Gpu(), facts, **others)


def test_every_leaf_is_reached_by_its_path():
    """A path is what one types to get at the leaf."""
    batch = {
        "a": (torch.ones(2, 3), "word"),
        3: Sample(torch.ones(1), {'"': [torch.ones(1)]}),
        "pair": Pair(np.ones(2, dtype="int16"), 7),
        "o": Plain(torch.ones(1)),
        "g": Graph(x=torch.ones(1)),
    }

    found = anatomy(batch)

    assert [leaf.path for leaf in found.leaves] == [
        'batch["a"][0]',
        "batch[3].image",
        "batch[3].more['\"'][0]",
        'batch["pair"].image',
        'batch["o"].image',
        'batch["g"]["x"]',
    ]
    for leaf in found.leaves:
        if not leaf.path.endswith('["x"]'):
            value = eval(leaf.path, {"batch": batch, "list": list})  # noqa: S307
            assert tuple(value.shape) == leaf.shape


def test_what_pinning_locks_is_rounded_to_powers_of_two():
    """Each tensor is a block of its own, also one that is there twice."""
    x = torch.ones(5, dtype=torch.uint8)

    assert anatomy([x]).locked_bytes == 8
    assert anatomy([x, x]).locked_bytes == 16
    assert anatomy([torch.ones(8, dtype=torch.uint8)]).locked_bytes == 8
    assert anatomy([torch.ones(0), np.ones(9)]).locked_bytes == 0


def test_the_reason_is_the_one_that_would_be_left():
    """The class that passes a leaf through is named whether the flag is on or off."""
    batch = [
        torch.ones(1),
        Sample([torch.ones(1)]),
        np.ones(1),
        torch.eye(4).to_sparse(),
    ]
    through, array = WhyPageable.PASSED_THROUGH, WhyPageable.NOT_A_TENSOR
    never = [through, array, WhyPageable.NOT_DENSE]

    on, off = (anatomy(batch, facts) for facts in (ON, OFF))

    assert [leaf.why for leaf in on.leaves] == [WhyPageable.UNKNOWN, *never]
    assert [leaf.why for leaf in off.leaves] == [WhyPageable.FLAG_OFF, *never]
    assert on.leaves[1].holder == "Sample"
    assert on.leaves[3].nbytes == 4 * 4 + 4 * 2 * 8  # values and indices


class Tensor:
    """Stands for a tensor: it says whether the pinner got to it."""

    def __init__(self, pinned=False):  # noqa: FBT002
        self.pinned = pinned

    def pin_memory(self):
        """As a tensor would be."""
        return Tensor(pinned=True)


PARTS = st.one_of(st.builds(Tensor), st.integers(0, 3), st.text(max_size=2))
CONTAINERS = st.recursive(
    PARTS,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.lists(parts, max_size=3).map(deque),
        st.dictionaries(st.integers(0, 3), parts, max_size=3),
        st.dictionaries(st.integers(0, 3), parts, max_size=3).map(OrderedDict),
        st.dictionaries(st.integers(0, 3), parts, max_size=3).map(UserDict),
        st.dictionaries(st.integers(0, 3), parts, max_size=3).map(Box),
        st.dictionaries(st.integers(0, 3), parts, max_size=3).map(Sealed),
        st.dictionaries(st.integers(0, 3), parts, max_size=3).map(PinsItself),
        st.builds(Pair, parts, parts),
        st.builds(Sample, parts, parts),
        st.builds(Plain, parts),
        st.builds(range, st.integers(0, 3)),
    ),
    max_leaves=8,
)


def reached(thing):
    """Which stand-ins for tensors the pinner has got to, in order."""
    if isinstance(thing, Tensor):
        return [thing.pinned]
    if isinstance(thing, (str, int)):
        return []
    return [each for part in parts_of(thing).values for each in reached(part)]


def foretold(thing, above=()):
    """The same, as it is said of a batch."""
    if isinstance(thing, Tensor):
        return [not passed_through_by(above)]
    if isinstance(thing, (str, int)):
        return []
    if isinstance(thing, PinsItself) and not passed_through_by(above):
        return reached(thing.pin_memory())
    above = (*above, thing)
    return [each for part in parts_of(thing).values for each in foretold(part, above)]


@settings(deadline=None, max_examples=150)
@given(CONTAINERS)
def test_what_is_said_of_the_pinner_is_what_it_does(batch):
    """For any containers, torch's pinner reaches what is said to be reached."""
    said = foretold(copy.deepcopy(batch))

    assert reached(torch_pinning.pin_memory(batch)) == said


MIB = 1 << 20
LEAF = Leaf("batch", nbytes=3 * MIB, pinned=Pinned.PAGEABLE)
BATCH = Anatomy((LEAF,), locked_bytes=4 * MIB)


def test_it_counts_all_batches_that_can_be_under_way():
    """Those of the workers, the one in hand, and the one copied ahead."""
    needed = needed_bytes(BATCH, 3, 2, pinned=True)
    batches = 3 * 2 + 1 + 1

    assert needed[Memory.SHM] == batches * 3 * MIB
    assert needed[Memory.AVAILABLE] == batches * (3 + 4) * MIB
    assert set(needed_bytes(BATCH, 0, 2, pinned=False).values()) == {0}


@pytest.mark.parametrize("share", [0.19, 0.21, 0.49, 0.51])
@pytest.mark.parametrize("kind", list(Memory))
def test_it_warns_over_a_fifth_and_refuses_over_a_half(kind, share):
    """Of each kind of memory alike."""
    needed = needed_bytes(BATCH, 2, 2, pinned=True)
    room = {kind: round(needed[kind] / share)}

    ((remark, too_much),) = limits_of(needed, room)

    assert bool(remark.hint) is (share > 0.2)
    assert too_much is (share > 0.5)
