"""A batch of any kind is searched, changed and moved without being touched."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, defaultdict, deque
from types import MappingProxyType

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import PackedSequence, pack_sequence  # noqa: E402

from gpumagic.errors import GpuMagicError  # noqa: E402
from gpumagic.pin_loader import same  # noqa: E402
from gpumagic.pin_loader.batch import mapped, tensors_in, to_device  # noqa: E402
from tests.pin_loader.kinds_of_batches import (  # noqa: E402
    Box,
    Counted,
    Forgetful,
    Frozen,
    Graph,
    InPlaceMover,
    Keeper,
    Mover,
    Named,
    NotedPair,
    OldMover,
    Pair,
    Picky,
    Plain,
    Sample,
    Sealed,
    Slotted,
)

MODEST = settings(deadline=None, max_examples=30)


def doubled(tensor):
    """What the tests do to every tensor."""
    return tensor * 2


def x(*values):
    """A small tensor."""
    return torch.tensor(values or (1.0, 2.0))


CONTAINERS = {
    "tuple": lambda part: (part, "label"),
    "list": lambda part: [part, 3],
    "dict": lambda part: {"image": part, "label": 1},
    "OrderedDict": lambda part: OrderedDict(b=1, a=part),
    "UserDict": lambda part: UserDict(a=part),
    "defaultdict": lambda part: defaultdict(list, a=part),
    "dict with a note": lambda part: Keeper({"a": part}, "note"),
    "mapping": lambda part: Box({"a": part}),
    "sealed mapping": lambda part: Sealed({"a": part}),
    "mapping proxy": lambda part: MappingProxyType({"a": part}),
    "namedtuple": lambda part: Pair(part, 3),
    "picky tuple": lambda part: Picky(part, 3),
    "deque": lambda part: deque([1, part], maxlen=4),
    "named list": lambda part: Named([part]),
    "dataclass": lambda part: Sample(part, "x"),
    "frozen dataclass": lambda part: Frozen(part, "x"),
    "dataclass that is busy": Counted,
    "graph": lambda part: Graph(x=part, name="g"),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_comes_back_as_its_class(kind):
    """Every container comes back as a new one of its class; the old is as it was."""
    part = x()
    batch = CONTAINERS[kind](part)

    new = mapped(batch, doubled)

    assert type(new) is type(batch)
    assert new is not batch
    assert [each.tolist() for each in tensors_in(new)] == [[2.0, 4.0]]
    assert tensors_in(batch) == [part]
    assert part.tolist() == [1.0, 2.0]


def test_what_a_container_has_beside_its_parts_stays():
    """A factory, a length, a note, a name: whatever is not a part is kept."""
    named, noted = Named([x()]), NotedPair(x(), 1)
    named.name, noted.note = "first", "note"

    assert mapped(defaultdict(list, a=x()), doubled).default_factory is list
    assert mapped(deque([x()], maxlen=7), doubled).maxlen == 7
    assert mapped(Keeper({"a": x()}, "note"), doubled).note == "note"
    assert mapped(named, doubled).name == "first"
    assert mapped(noted, doubled).note == "note"
    assert list(mapped(OrderedDict(b=1, a=x()), doubled)) == ["b", "a"]


def test_a_dataclass_is_not_made_a_second_time():
    """`__post_init__` does not run again, and a field that it made is changed."""
    batch = Counted(x())

    new = mapped(batch, doubled)

    assert new.made == ["made"]
    assert new.total is new.image
    assert batch.total is batch.image


def test_a_class_by_attrs_is_a_container():
    """The fields of a class by attrs are changed, frozen or not."""
    attrs = pytest.importorskip("attrs")
    for frozen in (False, True):
        kind = attrs.make_class("Made", ["image"], frozen=frozen)
        batch = kind(x())

        new = mapped(batch, doubled)

        assert type(new) is kind
        assert new.image.tolist() == [2.0, 4.0]
        assert batch.image.tolist() == [1.0, 2.0]


def test_plain_objects_are_opened_only_where_asked():
    """An object with attributes is left alone, or opened if that is asked for."""
    for kind in (Plain, Slotted):
        batch = kind(x())

        new = mapped([batch], doubled, objects=True)[0]

        assert tensors_in(batch) == []
        assert mapped(batch, doubled) is batch
        assert type(new) is kind
        assert new.image.tolist() == [2.0, 4.0]
        assert batch.image.tolist() == [1.0, 2.0]


def test_a_model_in_a_batch_is_no_container():
    """A batch that refers to a model, a dataset or a class does not carry them."""
    data = torch.utils.data.TensorDataset(x())
    batch = [torch.nn.Linear(2, 2), data, Plain, np, ValueError("x")]

    assert tensors_in(batch, objects=True) == []
    assert mapped(batch, doubled, objects=True) is batch


def test_an_object_may_refer_to_itself():
    """Objects in a circle come back as a circle of new objects."""
    batch = Plain(x())
    batch.me = batch

    new = mapped(batch, doubled, objects=True)

    assert new.me is new
    assert new is not batch
    assert len(tensors_in(batch, objects=True)) == 1


@pytest.mark.parametrize("walk", [tensors_in, lambda batch: mapped(batch, doubled)])
def test_a_batch_that_contains_itself_is_refused(walk):
    """A list within itself ends with a sentence, not with a RecursionError."""
    endless = [x()]
    endless.append({"again": (endless, endless)})

    with pytest.raises(GpuMagicError, match="contains itself"):
        walk(endless)


def test_the_same_twice_is_the_same_twice_afterwards():
    """Aliases of tensors and of containers stay aliases; views stay two tensors."""
    tensor = x()
    shared = [tensor]
    batch = {"a": tensor, "b": (shared, shared), "view": tensor[1:]}

    new = mapped(batch, doubled)

    assert new["a"] is new["b"][0][0]
    assert new["b"][0] is new["b"][1]
    assert new["view"].data_ptr() != new["a"].data_ptr() + 4
    assert [id(each) for each in tensors_in(batch)] == [id(tensor), id(batch["view"])]


def test_what_holds_no_tensor_is_handed_on():
    """Strings, numbers, arrays, and containers of them, are the same objects."""
    array, words = np.ones(3), ["a", "b"]
    batch = [x(), words, array, None, {"n": 3}, range(3), b"bytes", {1, 2}]

    new = mapped(batch, doubled)

    assert all(a is b for a, b in zip(new[1:], batch[1:], strict=True))


@pytest.mark.filterwarnings("ignore")
def test_every_sort_of_tensor_is_a_tensor():
    """Sparse, nested, of a subclass, a parameter: each is found and changed."""

    class Mine(torch.Tensor):
        pass

    tensors = [
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.nested.nested_tensor([x(), x(1.0)], layout=torch.jagged),
        x().as_subclass(Mine),
        torch.nn.Parameter(x()),
    ]

    new = mapped(tuple(tensors), doubled)

    assert list(map(id, tensors_in(tensors))) == list(map(id, tensors))
    assert new[0].to_dense().tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert type(new[3]) is Mine


# ---------------------------------------------------------------------- to a device


def test_tensors_are_moved_and_the_rest_is_not():
    """All tensors of a batch arrive at the device, in their containers."""
    batch = {"a": (x(), "word"), "b": Sample(x(), np.ones(2))}

    there = to_device(batch, "meta")

    assert [each.device.type for each in tensors_in(there)] == ["meta"] * 2
    assert [each.device.type for each in tensors_in(batch)] == ["cpu"] * 2
    assert there["b"].more is batch["b"].more


def test_containers_that_move_themselves_do_so():
    """A `.to` of their own is called, with non_blocking where it is understood."""
    mover, old = Mover(a=x()), OldMover(x())

    there = to_device([mover, old], "meta")

    assert there[0].non_blocking is True
    assert there[0]["a"].device.type == "meta"
    assert type(there[1]) is OldMover
    assert there[1].x.device.type == "meta"
    assert tensors_in(there[1])[0] is there[1].x
    assert to_device(mover, "meta", non_blocking=False).non_blocking is False


def test_a_mover_that_works_in_place_moves_a_copy():
    """Whoever moves itself in place, returning itself or nothing, stays on the host."""
    for batch in (InPlaceMover(x()), Graph(x=x(), name="g")):
        there = to_device([batch], "meta")[0]

        assert type(there) is type(batch)
        assert [each.device.type for each in tensors_in(there)] == ["meta"]
        assert [each.device.type for each in tensors_in(batch)] == ["cpu"]


def test_a_mover_that_returns_nothing_is_named():
    """A `.to` without a return ends with the name of its class."""
    with pytest.raises(GpuMagicError, match=r"Forgetful\.to\(device\) returned"):
        to_device((Forgetful(x()),), "meta")


def test_a_to_of_something_else_is_not_called():
    """An object without tensors keeps its `.to` to itself, whatever it means."""

    class Clock:
        zone = "here"

        def to(self, zone):
            raise AssertionError(zone)

    clock = Clock()

    assert to_device([x(), clock], "meta")[1] is clock


def test_a_packed_sequence_stays_one():
    """Its sizes stay on the host, as torch wants them; changed, it is one as well."""
    packed = pack_sequence([x(1.0, 2.0), x(3.0)])

    there, new = to_device(packed, "meta"), mapped(packed, doubled)

    assert type(there) is type(new) is PackedSequence
    assert there.data.device.type == "meta"
    assert there.batch_sizes.device.type == "cpu"
    assert new.data.tolist() == [2.0, 6.0, 4.0]
    assert packed.data.tolist() == [1.0, 3.0, 2.0]


def test_graphs_of_pyg_are_walked():
    """Data, batches and several kinds of nodes of PyG come back as their classes."""
    data = pytest.importorskip("torch_geometric.data")
    one = data.Data(x=torch.ones(3, 2), name="g", nested=[torch.ones(1)])
    several = data.HeteroData()
    several["paper"].x = torch.ones(2)
    several["a", "to", "b"].edge_index = torch.ones(2, 2)
    for graph, count in (
        (one, 2),
        (data.Batch.from_data_list([one, one]), 4),
        (several, 2),
    ):
        new, there = mapped([graph], doubled)[0], to_device([graph], "meta")[0]

        assert type(new) is type(there) is type(graph)
        assert len(tensors_in(graph)) == len(tensors_in(new)) == count
        assert {each.device.type for each in tensors_in(there)} == {"meta"}
        assert {each.device.type for each in tensors_in(graph)} == {"cpu"}
    assert several["paper"].x.tolist() == [1.0, 1.0]
    assert mapped(several, doubled)["paper"].x.tolist() == [2.0, 2.0]


# ---------------------------------------------------------------------- differences


def difference(was, now):
    """Between two batches, by a digest of each."""
    return same.difference(same.digest_of(was), same.digest_of(now))


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"a": (x(), 1), "b": 2}, None),
        ({"a": [x(), 1], "b": 2}, 'batch["a"]: tuple became list'),
        ({"b": 2, "a": (x(), 1)}, "batch: keys 'a', 'b' became keys 'b', 'a'"),
        ({"a": (x(), 1)}, "batch: keys 'a', 'b' became keys 'a'"),
        ({"a": (x(), 1.0), "b": 2}, 'batch["a"][1]: int became float'),
        ({"a": (x(), 4), "b": 2}, 'batch["a"][1]: 1 became 4'),
        (
            {"a": (x().double(), 1), "b": 2},
            'batch["a"][0]: Tensor float32 (2,) became Tensor float64 (2,)',
        ),
        ({"a": (x(1.0, 3.0), 1), "b": 2}, 'batch["a"][0]: other values'),
    ],
)
def test_a_difference_is_told_with_its_place(now, told):
    """The first difference of class, order or value is named with its path."""
    assert difference({"a": (x(), 1), "b": 2}, now) == told


def test_nan_is_the_same_as_nan():
    """In tensors, arrays and numbers NaN equals NaN, and nothing else."""
    nan = float("nan")

    def batch(value):
        return [
            x(value, 1.0),
            np.array([value, 1.0]),
            value,
            torch.tensor(value),
            np.array(value),
        ]

    assert difference(batch(nan), batch(nan)) is None
    for place in range(5):
        now = batch(nan)
        now[place] = batch(1.0)[place]

        assert str(difference(batch(nan), now)).startswith(f"batch[{place}]: ")


ONE, OTHER = (1.0, 2.0), (1.0, 3.0)
SORTS = {
    "sparse": lambda values: torch.diag(x(*values)).to_sparse(),
    "sparse rows": lambda values: torch.diag(x(*values)).to_sparse_csr(),
    "nested": lambda values: torch.nested.nested_tensor(
        [x(*values), x()], layout=torch.jagged
    ),
    "tiny floats": lambda values: x(*values).to(torch.float8_e4m3fn),
    "bool": lambda values: x(*values) > 2,
    "one number": lambda values: torch.tensor(values[1]),
    "array": np.array,
    "one string": lambda values: np.array(str(values)),
    "packed": lambda values: pack_sequence([x(*values)]),
    "object": lambda values: Plain(x(*values)),
    "frozen": lambda values: Frozen(x(*values)),
    "set": set,
    "set of tensors": lambda values: {torch.tensor(each) for each in values},
    "graph": lambda values: Graph(a=x(*values)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sort", SORTS)
def test_every_sort_of_value_is_compared(sort):
    """Whatever holds values is equal to one of the same, and not to one of others."""
    make = SORTS[sort]

    assert difference(make(ONE), make(ONE)) is None
    assert difference(make(ONE), make(OTHER)) is not None


def test_sparse_tensors_with_other_places_differ():
    """It is told where elements are, not only what they are."""
    was, now = (torch.tensor(rows).to_sparse() for rows in ([1, 0], [0, 1]))

    assert difference(was, now) is not None
    assert difference(was, torch.tensor([1, 1]).to_sparse()) is not None


def test_sparse_tensors_in_parts_are_added_up():
    """An element that is stored in two parts is the same as their sum."""
    halves = torch.sparse_coo_tensor([[0, 0]], [1.0, 1.0], (2,), check_invariants=True)
    whole = torch.tensor([2.0, 0.0]).to_sparse()

    assert difference(halves, whole) is None


# ----------------------------------------------------------------------- properties

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

    assert difference(batch, back) is None
    assert difference(before, batch) is None
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
