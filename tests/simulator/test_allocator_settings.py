"""PYTORCH_ALLOC_CONF means to the simulated allocator what it means to torch."""

from __future__ import annotations

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.simulator.allocator_settings import AllocatorSettings
from tests.simulator.simulated_device import DEFAULT, MIB, allocator_of


@pytest.mark.parametrize(
    ("nbytes", "rounded"),
    [
        (1_200, (1_536, 1_536, 1_536, 1_536)),
        (5_000, (6_144, 5_120, 5_120, 5_120)),
        (84 * MIB, (96 * MIB, 96 * MIB, 88 * MIB, 84 * MIB)),
        (400 * MIB, (512 * MIB, 448 * MIB, 416 * MIB, 400 * MIB)),
        (256 * MIB, (256 * MIB,) * 4),
    ],
)
def test_sizes_are_rounded_to_steps_between_powers_of_two(nbytes, rounded):
    """roundup_power2_divisions makes a block as large as torch makes it."""
    for divisions, expected in zip((2, 4, 8, 16), rounded, strict=True):
        allocator = allocator_of(conf=f"roundup_power2_divisions:{divisions}")
        assert allocator.allocate(nbytes, DEFAULT).size == expected


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("backend:cudaMallocAsync", "does not model backend:cudaMallocAsync"),
        ("max_split_size:200", "did you mean max_split_size_mb?"),
        ("max_split_size_mb", "not a list of key:value pairs"),
        ("max_split_size_mb:10", "not a whole number from 20 on"),
        ("garbage_collection_threshold:1.5", "not a number between 0 and 1"),
        ("roundup_power2_divisions:3", "not a power of two"),
        ("roundup_power2_divisions:[64:8,>:4]", "does not model roundup_power2"),
        ("expandable_segments:yes", "not True or False"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(conf, said):
    """A setting that is unknown, malformed or not modelled is named, with a way out."""
    with pytest.raises(GpuMagicError) as caught:
        AllocatorSettings.parse(conf)
    assert said in str(caught.value)
    assert caught.value.hint


@pytest.fixture
def _no_variables(monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_variables")
def test_the_environment_is_asked_where_nothing_else_is_said(monkeypatch):
    """The newer of torch's two names goes first; what is said goes before both."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:100")
    assert AllocatorSettings.asked_for(None).max_split_size_bytes == 100 * MIB
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:200")
    assert AllocatorSettings.asked_for(None).max_split_size_bytes == 200 * MIB
    assert AllocatorSettings.asked_for("") == AllocatorSettings()


@pytest.mark.usefixtures("_no_variables")
def test_a_refusal_names_the_variable_that_asked_for_it(monkeypatch):
    """Who has set it in a shell months ago is told where, and how to go on."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:much")

    with pytest.raises(GpuMagicError) as refused:
        AllocatorSettings.asked_for(None)

    assert refused.value.problem.endswith("; PYTORCH_CUDA_ALLOC_CONF asks for it")
    assert "%env PYTORCH_CUDA_ALLOC_CONF=" in refused.value.hint
