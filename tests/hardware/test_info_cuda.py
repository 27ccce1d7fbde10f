"""`%tensor_info` says of a tensor on the GPU what it says of its twin on the CPU."""

from __future__ import annotations

import pytest

from gpumagic.tensor_info import aliases, compare, describe, explain_view, overview
from tests.hardware import machines
from tests.tensor_info import geometries

# What differs by right: where it lies, and what follows from that.
_OF_THE_DEVICE = {"device", "on_accelerator", "simulated", "address", "warp_along_dim"}
_DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
_DTYPES += ("bool", "uint8", "int8", "int16", "int32", "int64", "float8_e4m3fn")


def told(report):
    """All figures of a report but those of its device."""
    figures = report.to_dict()
    return {name: figures[name] for name in figures if name not in _OF_THE_DEVICE}


@pytest.fixture
def twins(torch):
    """A storage of bytes on either device, the same in both."""
    chance = torch.Generator().manual_seed(7)
    host = torch.randint(256, (1 << 16,), dtype=torch.uint8, generator=chance)
    return host, host.to("cuda")


def strided(storage, geometry):
    """A view of a storage, with the geometry's strides, as int8 to int64."""
    import torch

    dtype = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    whole = storage.view(dtype[geometry.itemsize])
    return whole.as_strided(geometry.size, geometry.stride, geometry.offset)


def test_views_of_any_strides_are_described_as_on_the_cpu(twins):
    """Two hundred random geometries: every figure but the address is the twin's."""
    for geometry in geometries.some(200, 34):
        here, there = (strided(each, geometry) for each in twins)

        assert told(describe(there)) == told(describe(here)), geometry
        assert describe(there).on_accelerator
        if there.numel():
            assert describe(there).address == there.data_ptr()
        flat = explain_view(there, (-1,)) if there.numel() else None
        assert flat is None or flat.view == (describe(here).view_flat is True)


def test_views_of_any_strides_are_read_as_on_the_cpu(twins):
    """Thirty of them, value by value: the same extremes, mean, zeros and tiles."""
    for geometry in geometries.some(30, 35, least=1):
        here, there = (strided(each, geometry) for each in twins)
        mine, its = (describe(each, values=True) for each in (here, there))

        assert its.values.to_dict() == mine.values.to_dict(), geometry


@pytest.mark.parametrize("dtype", _DTYPES)
def test_values_of_every_dtype_are_those_of_the_cpu(torch, dtype):
    """Numbers, zeros, NaN and infinities of either sign, and where the first lies."""
    numbers = [[0.0, 1.0, 5.0], [3.0, 0.0, 1.0]]
    kind = getattr(torch, dtype)
    if kind.is_floating_point and "float8" not in dtype:
        numbers[1] = [float("nan"), float("-inf"), 2.0]
    here = torch.tensor(numbers).to(kind)
    found = [describe(each, values=True) for each in (here, here.to("cuda"))]

    mine, its = (each.values.to_dict() for each in found)
    assert its == mine
    assert found[1].remarks == ()


def test_a_nan_in_a_large_tensor_is_found_where_it_lies(torch):
    """Sixteen million values are read on the device; no copy of them is made."""
    x = torch.zeros(4096, 4096, device="cuda").t()
    x[5, 7] = float("nan")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    found = describe(x, values=True).values

    assert (found.nan_count, found.first_nan, found.zero_count) == (
        1,
        (5, 7),
        2**24 - 1,
    )
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before < 40 << 20


def test_names_that_share_memory_are_found_by_their_storage(torch):
    """Views share; a clone does not, nor does a twin on the CPU."""
    x = torch.arange(24.0, device="cuda").reshape(4, 6)
    names = {"x": x, "y": x[:, ::2], "z": x.clone(), "w": x.cpu()}
    (group,) = aliases(names).groups
    report = compare(x, x[:, ::2], names["z"], names["w"])

    assert {each.name for each in group.names} == {"x", "y"}
    assert group.device == "cuda:0"
    assert [each.relation for each in report.pairs[:3]] == [
        "contains",
        "disjoint",
        "disjoint",
    ]


def test_a_parameter_with_a_nan_is_named_in_its_model(torch):
    """All tensors of a model on the GPU are read where they lie."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    model.to("cuda")[1].running_var[3] = float("inf")
    report = overview(model, values=True, expression="model")

    assert report.root.inf_count == 1
    assert [each.names for each in report.odd] == [(".1.running_var",)]


_SEVERAL = """
import torch
from gpumagic.tensor_info import overview
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
for number in range(4):
    model[number].to(f"cuda:{number}")
other = torch.ones(8, device="cuda:3")
shell.user_ns.update(model=model, x=model[1].weight, other=other)
show(
    devices=overview(model).root.devices,
    model=typed("%tensor_info model"),
    pair=typed("%tensor_info x, x.t(), other"),
    alias=typed("%tensor_info --alias"),
    values=typed("%tensor_info --values x"),
    contexts=[torch._C._cuda_hasPrimaryContext(number) for number in range(5)],
    current=torch.cuda.current_device(),
)
"""


def test_a_model_on_four_gpus_is_told_where_each_part_lies(tmp_path):
    """Parts by device; looking makes no context elsewhere and changes no device."""
    found = machines.run(_SEVERAL, machines.h100s(5, tmp_path))

    assert found["devices"] == [f"cuda:{number}" for number in range(4)]
    assert "tensors lie on cuda:0, cuda:1" in " ".join(found["model"].split())
    assert "1 of 3 pairs of x, x.t() and other share elements" in found["pair"]
    assert "x" in found["alias"]
    assert found["values"].startswith("x: 4,096 values, no NaN, no inf")
    assert found["contexts"] == [True] * 4 + [False]
    assert found["current"] == 0


_BROKEN = """
typed("import time, torch; x = torch.ones(4, 6, device='cuda')")
typed("x[torch.tensor([9], device='cuda')]; time.sleep(0.2)")
lines = ("x", "x.t(), x", "--alias", "--view 24 x", "--gpu x", "--values x", "x + 1")
show(**{line: typed(f"%tensor_info {line}") for line in lines})
"""


def test_after_a_failed_kernel_a_tensor_is_still_described():
    """Looking needs no device; what would read the values says why it cannot."""
    found = machines.run(_BROKEN)

    assert found["x"].startswith("x: 4 x 6 float32 on cuda:0, a contiguous ")
    assert "Each index with its place in memory" in found["x"]
    assert "share elements" in found["x.t(), x"]
    assert found["--view 24 x"].startswith("x.view(24) works")
    assert "of what a warp fetches" in found["--gpu x"]
    assert "device-side assert triggered" in found["--values x"]
    assert "Traceback" not in found["--values x"]


_TYPED = """
typed("import torch; x = torch.arange(24.0, device='cuda').reshape(4, 6)")
plain = typed("%tensor_info x")
typed("x[1, 2] = float('nan')")
show(plain=plain, values=typed("%tensor_info --values x"),
     both=typed("%tensor_info --gpu --values x"), warp=typed("%tensor_info --gpu x"),
     folded=typed("%tensor_info --show warp x"))
"""


def test_what_was_asked_for_comes_first():
    """Unasked the places, as on the CPU; by `--values` the NaN; by `--gpu` the warp."""
    found = machines.run(_TYPED)

    assert found["plain"].startswith("x: 4 x 6 float32 on cuda:0, a contiguous ")
    assert "Each index with its place in memory" in found["plain"]
    for each in ("values", "both"):
        assert found[each].startswith("x: 1 NaN in 24 values, the first at [1, 2]")
    assert found["warp"].startswith("x: of what a warp fetches it uses")
    assert "What a warp of 32 lanes fetches" in found["folded"]
