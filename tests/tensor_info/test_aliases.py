from __future__ import annotations

import contextlib

import pytest

from gpumagic.tensor_info import aliases, compare
from gpumagic.tensor_info.geometry import Geometry
from gpumagic.tensor_info.overlap import Placed, covered_bytes

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies


def grid():
    """24 numbers in a storage of their own."""
    return torch.zeros(4, 6)


def names(group):
    """The names of a group, in their order."""
    return [each.name for each in group.names]


def test_all_ways_to_share_are_found_one_level_deep():
    """Views, other dtypes, arrays, items and parameters: under names that one types."""
    x = grid()
    module = torch.nn.Linear(6, 4, bias=False)
    module.weight = torch.nn.Parameter(x)
    module.register_buffer("seen", x[0])
    namespace = {
        "view": x.t(),
        "detached": x.detach(),
        "bytes_": x.view(torch.uint8),
        "array": x.numpy(),
        "xs": [x],
        "pair": (0, x),
        "batch": {"image": x, "deep": [grid()]},
        "model": module,
        "other": grid(),
    }

    (group,) = aliases(namespace).groups

    found = "view detached bytes_ array xs[0] pair[1] batch['image'] model.weight"
    assert names(group) == [*found.split(), "model.seen"]
    assert (group.stored_bytes, group.used_bytes) == (96, 96)


def test_outputs_are_told_apart_and_counted_once():
    """What only `Out` keeps is one output, last, with the code that frees it."""
    x = grid()
    shown = x[0]

    found = aliases({"_": shown, "_7": shown, "Out": {7: shown}, "x": x})

    assert names(found.groups[0]) == ["x", "Out[7]"]
    assert [each.is_output for each in found.groups[0].names] == [False, True]


def test_the_advice_is_true():
    """After the advised line the storage is gone, and so many bytes with it."""
    names = {"y": torch.zeros(2000, requires_grad=True).detach()[:10]}
    storage = torch.multiprocessing.reductions.StorageWeakRef(
        names["y"].untyped_storage()
    )
    report = aliases(names)
    (note,) = report.drawing().notes

    exec(note.hint.split("`")[1], names)  # noqa: S102 - it is what we advise

    assert storage.expired()
    assert report.groups[0].freed_by_copies_bytes == 7960
    assert aliases({"row": torch.zeros(3, 4)[1]}).groups == ()  # 32 B are no matter
    weight = torch.nn.Parameter(torch.zeros(2000)[:10])
    (group,) = aliases({"weight": weight}).groups
    assert group.kept_for_nothing_bytes == 7960
    assert group.freed_by_copies_bytes == 0


def test_a_search_that_takes_too_long_is_cut_short_and_says_so():
    """Without time the report is not complete, and says what to type."""
    found = aliases({"x": grid(), "y": grid()}, budget_s=0.0)

    assert not found.complete
    assert "--alias x" in str(found)


PIECES = strategies.lists(
    strategies.tuples(
        strategies.lists(strategies.integers(0, 4), min_size=2, max_size=2),
        strategies.lists(strategies.integers(0, 9), min_size=2, max_size=2),
        strategies.integers(0, 12),
        strategies.sampled_from([1, 2, 4]),
    ),
    min_size=1,
    max_size=4,
)


@hypothesis.given(PIECES)
@hypothesis.settings(max_examples=300, deadline=None)
def test_the_bytes_reached_together_are_those_that_marking_finds(pieces):
    """However views lie over each other, their union is counted once, byte by byte."""
    memory, placed = np.zeros(400, dtype=np.uint8), []
    for size, stride, offset, itemsize in pieces:
        placed.append(Placed(Geometry(tuple(size), tuple(stride), offset, itemsize), 8))
        view = np.lib.stride_tricks.as_strided(
            memory[8 + offset * itemsize :],
            (*size, itemsize),
            (*(step * itemsize for step in stride), 1),
        )
        view[...] = 1

    assert covered_bytes(placed) == int(memory.sum())


@hypothesis.given(
    strategies.lists(
        strategies.tuples(
            strategies.integers(0, 2), strategies.integers(0, 50), strategies.booleans()
        ),
        min_size=1,
        max_size=8,
    )
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_names_are_grouped_by_the_memory_that_they_were_cut_from(cuts):
    """Whatever names are made of whatever storages, each storage is one group."""
    storages = [torch.zeros(64) for _ in range(3)]
    namespace, expected = {}, {}
    for number, (which, start, detached) in enumerate(cuts):
        view = storages[which][start:]
        namespace[f"x{number}"] = view.detach() if detached else view
        expected.setdefault(which, set()).add(f"x{number}")

    found = aliases(namespace)

    several = [each for each in expected.values() if len(each) > 1]
    shared = [set(names(each)) for each in found.groups if len(each.names) > 1]
    assert sorted(map(sorted, shared)) == sorted(map(sorted, several))


@pytest.mark.parametrize(
    ("view", "is_safe"),
    [
        (lambda y: y, True),
        (lambda y: y.view(4, 4), True),
        (lambda y: y.t(), False),
        (lambda y: y.view(2, 2, 4).transpose(0, 1).reshape(4, 4), True),
    ],
)
def test_pairs_are_warned_of_that_torch_refuses_to_add_in_place(view, is_safe):
    """What an operation writes, it may not read again in another order."""
    y = torch.ones(4, 4)
    other = view(y)
    notes = [each.text for each in compare(y, other).drawing().notes]

    assert any("may mix values" in text for text in notes) is not is_safe
    with contextlib.nullcontext() if is_safe else pytest.raises(RuntimeError):
        y += other


def test_what_to_type_is_code_where_tensors_were_given_no_names():
    """The name that stands for a tensor in a hint can be typed."""
    (alone,) = compare(torch.zeros(4000)[:4]).drawing().notes

    assert alone.hint == "y = tensors[0].clone()"
