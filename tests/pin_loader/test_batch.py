"""A batch of any kind is searched, changed and moved without being touched."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from types import MappingProxyType

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import PackedSequence, pack_sequence  # noqa: E402

from gpumagic.errors import GpuMagicError  # noqa: E402
from gpumagic.pin_loader import prove  # noqa: E402
from gpumagic.pin_loader.batch import mapped, tensors_in, to_device  # noqa: E402
from tests.pin_loader.kinds import (  # noqa: E402
    Box,
    Frozen,
    Graph,
    Pair,
    Picky,
    Plain,
    Sample,
    Sealed,
)

MODEST = settings(deadline=None, max_examples=30)


def doubled(tensor):
    """What the tests do to every tensor."""
    return tensor * 2


def x(*values):
    """A small tensor."""
    return torch.tensor(values or (1.0, 2.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda part: Graph(x=part, name="g"),
        lambda part: MappingProxyType({1: part}),
        lambda part: Picky(part, 3),
    ],
)
def test_what_is_not_copied_deeply_comes_back_as_its_class(make):
    """A new one of its class; the old is as it was."""
    part = x()
    batch = make(part)

    new = mapped(batch, doubled)

    assert type(new) is type(batch)
    assert new is not batch
    assert [each.tolist() for each in tensors_in(new)] == [[2.0, 4.0]]
    assert tensors_in(batch) == [part]


@pytest.mark.parametrize("walk", [tensors_in, lambda batch: mapped(batch, doubled)])
def test_a_batch_that_contains_itself_is_refused(walk):
    """A list within itself ends with a sentence, not with a RecursionError."""
    endless = [x()]
    endless.append({"again": (endless, endless)})

    with pytest.raises(GpuMagicError, match="contains itself"):
        walk(endless)


def test_a_packed_sequence_stays_one():
    """Its sizes stay on the host, as torch wants them; changed, it is one as well."""
    packed = pack_sequence([x(1.0, 2.0), x(3.0)])

    there, new = to_device(packed, "meta"), mapped(packed, doubled)

    assert type(there) is type(new) is PackedSequence
    assert there.data.device.type == "meta"
    assert there.batch_sizes.device.type == "cpu"
    assert new.data.tolist() == [2.0, 6.0, 4.0]
    assert packed.data.tolist() == [1.0, 3.0, 2.0]


def test_a_model_that_a_batch_refers_to_stays_where_it_is():
    """Neither its tensors nor those of a dataset or a loader are those of a batch."""
    model = torch.nn.Linear(2, 2)
    batch = Plain([x(), model])

    there = to_device(batch, "meta")

    assert there.image[0].device.type == "meta"
    assert there.image[1] is model
    assert len(tensors_in(batch)) == 1


def test_objects_that_refer_to_each_other_are_changed_once():
    """A part may know what it is in; the batch itself is not touched."""
    batch, part = Plain(None), Plain(x())
    batch.image, part.owner = part, batch

    new = mapped(batch, doubled)

    assert new.image.image.tolist() == [2.0, 4.0]
    assert (batch.image, part.owner) == (part, batch)
    assert [each.tolist() for each in tensors_in(batch)] == [[1.0, 2.0]]


def difference(was, now):
    """Between two batches, by a digest of each."""
    return prove.difference(prove.digest_of(was), prove.digest_of(now))


ONE, OTHER = (1.0, 2.0), (1.0, 3.0)
SORTS = {
    "sparse": lambda values: torch.diag(x(*values)).to_sparse(),
    "nested": lambda values: torch.nested.nested_tensor(
        [x(*values), x()], layout=torch.jagged
    ),
    "tiny floats": lambda values: x(*values).to(torch.float8_e4m3fn),
    "one number": lambda values: torch.tensor(values[1]),
    "array": np.array,
    "packed": lambda values: pack_sequence([x(*values)]),
    "object": lambda values: Plain(x(*values)),
    "set of tensors": lambda values: {torch.tensor(each) for each in values},
    "graph": lambda values: Graph(a=x(*values)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sort", SORTS)
def test_every_sort_of_value_is_compared(sort):
    """Whatever holds values is equal to one of the same, and not to one of others."""
    make = SORTS[sort]

    assert difference(make(ONE), make(ONE)) == ""
    assert difference(make(ONE), make(OTHER))


LEAVES = st.one_of(
    st.lists(st.floats(width=32), max_size=3).map(torch.tensor),
    st.integers(-3, 3),
    st.text(max_size=2),
    st.none(),
)
BATCHES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.lists(parts, max_size=3).map(deque),
        st.dictionaries(st.text(max_size=2), parts, max_size=3),
        st.dictionaries(st.text(max_size=2), parts, max_size=3).map(OrderedDict),
        st.dictionaries(st.text(max_size=2), parts).map(lambda p: defaultdict(list, p)),
        st.dictionaries(st.integers(0, 3), parts, max_size=3).map(Box),
        st.dictionaries(st.integers(0, 3), parts, max_size=3).map(Sealed),
        st.builds(Pair, parts, parts),
        st.builds(Sample, parts, parts),
        st.builds(Frozen, parts, parts),
        parts.map(lambda part: [part, part]),
    ),
    max_leaves=8,
)


@MODEST
@given(BATCHES)
def test_there_and_back_is_the_same_batch(batch):
    """A batch that is changed and changed back is equal; the first never changes."""
    before = copy.deepcopy(batch)

    new = mapped(batch, lambda tensor: tensor.double())
    back = mapped(new, lambda tensor: tensor.float())

    assert difference(batch, back) == ""
    assert difference(before, batch) == ""
    assert len(tensors_in(new)) == len(tensors_in(batch))


@MODEST
@given(BATCHES)
def test_tensors_correspond_one_to_one(batch):
    """The tensors of the new batch are the changed ones of the old, in order."""
    changed = {}

    def change(tensor):
        assert id(tensor) not in changed
        changed[id(tensor)] = tensor.clone()
        return changed[id(tensor)]

    new = mapped(batch, change)

    expected = [changed[id(tensor)] for tensor in tensors_in(batch)]
    assert [id(each) for each in tensors_in(new)] == [id(each) for each in expected]
