"""What advice and remarks promise: true where they are said, said where it matters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.tensor_info import aliases, names
from gpumagic.tensor_info.geometry import Geometry
from gpumagic.tensor_info.names import advice_for
from gpumagic.tensor_info.tensors import Memory, Reading
from gpumagic.tensor_info.values import summarise

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("all_holders", "is_sure"), [(2, True), (None, False)])
def test_what_frees_memory_is_conditional_where_holders_are_not_known(
    all_holders, is_sure
):
    """Where torch does not tell who else holds it, nothing is promised to be freed."""
    shown = SimpleNamespace(
        is_output=True, memory=SimpleNamespace(all_holders=all_holders)
    )

    advice = advice_for([shown], 1024, None, None)

    assert advice.startswith("`%reset -f out` frees 1.00 KiB")
    assert ("unless something else holds it" in advice) is not is_sure


def test_no_copy_of_a_parameter_is_advised():
    """A clone of a parameter is none: the module and its optimizer would lose it."""
    weight = torch.nn.Parameter(torch.zeros(1000)[:10])

    (group,) = aliases({"weight": weight}).groups

    assert group.kept_for_nothing_bytes == 3960
    assert "weight" not in group.advice


@pytest.mark.parametrize("on_accelerator", [True, False])
def test_reading_values_of_a_device_is_owned_up_to(on_accelerator):
    """The one look that runs operations there, and waits, says so; on the CPU not."""
    summary, remarks = summarise(torch.arange(4.0), on_accelerator=on_accelerator)

    assert summary.maximum == 3.0
    assert bool(remarks) is on_accelerator
    assert all("waited for it and copied" in each for each in remarks)


def test_equal_addresses_on_two_devices_are_two_memories(monkeypatch):
    """Each device counts its addresses for itself: tensors there share nothing."""
    # Given two tensors at one address, each on a GPU of its own
    first, second = torch.zeros(16), torch.zeros(16)

    def read(thing, _name=""):
        device = "cuda:0" if thing is first else "cuda:1"
        return Reading(
            "tensor",
            geometry=Geometry((16,), (1,), 0, 4),
            memory=Memory(device, start=4096, size_bytes=64, address=4096),
        )

    monkeypatch.setattr(names, "read", read)

    # When
    found = aliases({"first": first, "second": second})

    # Then
    assert found.groups == ()
    assert (found.alone, found.alone_bytes) == (2, 128)
