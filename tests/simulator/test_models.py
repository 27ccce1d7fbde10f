"""A GPU is found by whatever it is called, and what is asked for is taken literally."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.simulator.models import CATALOGUE, MOST_GPUS, find_model, parse_request

models = st.sampled_from(CATALOGUE)
counts = st.integers(1, MOST_GPUS)


def names(model):
    """Every name that finds it."""
    return [model.key, *model.aliases, model.title, model.product]


def names_of(model):
    """Every way in which a model may be written."""
    return st.sampled_from(names(model))


def messed(name, capitals):
    """The same name with some letters in capitals."""
    return "".join(
        letter.upper() if capital else letter
        for letter, capital in zip(name, capitals, strict=True)
    )


@given(data=st.data(), model=models, count=counts, spaces=st.sampled_from(["", " "]))
def test_every_name_of_every_model_is_understood_with_a_count(
    data, model, count, spaces
):
    """A count may stand before or behind any name of a model, in any case."""
    name = data.draw(names_of(model))
    name = messed(name, [data.draw(st.booleans()) for _ in name])

    assert parse_request(name) == (model, 1)
    assert parse_request(f"{count}{spaces}x{spaces}{name}") == (model, count)
    assert parse_request(f" {name}{spaces}X{spaces}{count} ") == (model, count)


@pytest.mark.parametrize(
    ("typed", "key", "count"),
    [
        ("2 x t4", "t4", 2),
        ("4x4090", "rtx4090", 4),
        ("4090x2", "rtx4090", 2),
        ("A100 40GB", "a100-40gb", 1),
        ("NVIDIA H100 80GB HBM3", "h100", 1),
    ],
)
def test_usual_ways_of_asking(typed, key, count):
    """What people type for a machine means that machine."""
    model, found = parse_request(typed)

    assert (model.key, found) == (key, count)


@pytest.mark.parametrize("typed", ["h10O", "2xh10O", "h10O X 2"])
def test_a_misspelt_model_is_answered_with_the_list_and_the_nearest(typed):
    """An unknown name is repeated, what there is is listed, the nearest is offered."""
    with pytest.raises(GpuMagicError) as caught:
        parse_request(typed)

    assert "no GPU named 'h10O' " in caught.value.problem
    assert all(model.key in caught.value.problem for model in CATALOGUE)
    assert caught.value.hint == "did you mean h100?"


@pytest.mark.parametrize("model", CATALOGUE, ids=lambda model: model.key)
def test_every_figure_is_plausible(model):
    """Efficiencies are shares, and each type that has units has one."""
    assert model.label == f"simulated {model.title}"
    assert 0.5 < model.memory_efficiency <= 1
    assert all(0 < share <= 1 for share in model.compute_efficiency.values())
    assert set(model.peak_flops) <= set(model.compute_efficiency)
    json.dumps(model.to_dict())
    assert hash(model) == hash(find_model(model.key))
