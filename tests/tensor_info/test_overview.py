"""What a model holds: counted once, told what is odd, and left as it was."""

from __future__ import annotations

import json

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.tensor_info import overview

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
nn = torch.nn


def net():
    """A small model with a buffer or two."""
    return nn.Sequential(
        nn.Linear(4, 8), nn.Sequential(nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 2)
    )


def odd(report):
    """The names of the tensors that are odd, by what is odd about them."""
    return {each.kind: each.names for each in report.odd}


def test_totals_are_those_of_torch():
    """Parameters, buffers and bytes add up to what torch itself tells."""
    model = net()

    report = overview(model)

    tensors = [*model.parameters(), *model.buffers()]
    assert report.root.parameters == sum(each.numel() for each in model.parameters())
    assert report.root.trainable == report.root.parameters
    assert report.root.stored_bytes == sum(each.nbytes for each in tensors)
    assert report.root.tensors == len(tensors)
    assert {each.name: each.tensors for each in report.roles} == {
        "parameters": 6,
        "buffers": 3,
    }
    assert report.odd == ()


def test_a_tied_weight_is_counted_once_and_named():
    """The second name of a parameter adds nothing to the whole, and says so."""
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4), "head": nn.Linear(4, 10)})
    model["head"].weight = model["embed"].weight

    report = overview(model)

    assert report.root.parameters == 50
    assert report.root.stored_bytes == 200
    assert [child.parameters for child in report.root.children] == [40, 50]
    assert odd(report) == {"tied": (".head.weight",)}
    assert "model.head.weight is model.embed.weight" in str(report)
    # In a state dict there are other objects, over the same memory.
    report = overview(model.state_dict())
    assert (report.kind, report.root.elements) == ("state dict", 50)
    assert [child.name for child in report.root.children] == ["embed", "head"]
    assert odd(report) == {"tied": ("['head.weight']",)}


def test_views_of_one_storage_are_counted_once():
    """A flat buffer and its views take what the buffer takes; halves do not overlap."""
    flat = torch.zeros(100)

    views = overview([flat, flat[:30], flat[20:60]])
    halves = overview([flat[:50], flat[50:]])
    interleaved = overview([flat[::2], flat[1::2]])

    assert (views.root.elements, views.root.stored_bytes) == (100, 400)
    for report in (halves, interleaved):
        assert (report.root.elements, report.root.stored_bytes) == (100, 400)
        assert "tied" not in odd(report)


def test_a_module_used_twice_says_where_it_was_first():
    """Its parameters are counted once; the tree does not repeat it."""
    block = nn.Linear(3, 3)
    model = nn.Sequential(block, nn.ReLU(), block)

    report = overview(model)

    assert report.root.parameters == 12
    assert [child.same_as for child in report.root.children] == ["", "", "[0]"]
    assert "the same as model[0]" in str(report)
    loop = [torch.ones(2)]
    loop.append(loop)
    assert overview(loop).root.elements == 2


def test_what_is_odd_is_named():
    """Frozen, another device, not registered: each is told; of a dtype, in its line."""
    model = net()
    model[0].weight.requires_grad_(False)
    model[0].bias.data = model[0].bias.data.double()
    model[2].weight = nn.Parameter(torch.zeros(8, 2).t())
    model[2].bias = nn.Parameter(torch.zeros(2, device="meta"))
    model[1].mask = torch.ones(3)

    report = overview(model)

    assert odd(report) == {
        "several devices": ("[2].bias",),
        "not registered": ("[1].mask",),
        "frozen": ("[0].weight",),
    }
    assert "1 tensor on another device, 1 not registered" in report.drawing().title
    assert "float64" in str(report)


def test_an_optimizer_tells_what_it_remembers():
    """Parameters and state are told apart; Adam remembers twice its parameters."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    fresh = overview(optimizer)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()

    report = overview(optimizer, expression="optimizer")

    roles = {each.name: each.elements for each in report.roles}
    assert [each.name for each in fresh.roles] == ["parameters"]
    assert report.kind == "optimizer (Adam)"
    assert roles == {"parameters": 74, "state": 2 * 74 + 6}
    names = [child.name for child in report.root.children]
    assert names == ["group 0", "step", "exp_avg", "exp_avg_sq"]
    assert " of state" in report.drawing().title


@pytest.mark.parametrize("thing", [5, None, "x", [], {"a": 1}])
def test_what_holds_no_tensor_is_refused(thing):
    """Two lines say what it is instead."""
    with pytest.raises(GpuMagicError) as caught:
        overview(thing, expression="thing")

    assert caught.value.problem.startswith("thing is no ")


def test_kinds_of_every_sort_are_counted():
    """Meta, lazy, sparse and wrapped tensors cost no more than a remark."""
    model = net()
    model.lazy = nn.LazyLinear(3)
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    model.register_buffer("far", torch.zeros(5, device="meta"))

    report = overview(model)

    assert report.root.parameters == 74
    assert report.root.elements >= 74 + 9 + 5
    assert json.dumps(report.to_dict())


def test_values_that_cannot_be_read_are_one_sentence():
    """However many tensors have none, the reason is told once, with how many."""
    model = nn.Sequential(*(nn.Linear(2, 2, device="meta") for _ in range(20)))

    report = overview(model, values=True)

    assert report.root.nan_count is None
    assert not report.values
    linear = nn.Linear(2, 2)
    sound = overview([linear, *linear.bias.split([0, 0, 2])], values=True)
    assert ", no NaN or inf in 4 tensors" in sound.headline
    unread = [each for each in report.remarks if "cannot be read" in each]
    assert len(unread) == 1
    assert unread[0].startswith("values of [0].weight and 39 more cannot be read")


def test_a_large_model_stays_small_on_the_page():
    """A thousand different modules: one screen of text, forty kilobytes of HTML."""
    model = nn.ModuleDict(
        {f"part{n}": nn.Sequential(nn.Linear(1, n + 1)) for n in range(1000)}
    )

    drawing = overview(model).drawing()

    assert len(drawing.text(80).splitlines()) <= 30
    assert len(drawing.html().encode()) <= 40_000
    assert "more" in drawing.text()
