"""Views on the simulated GPU: torch's own, on the memory of their base."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("kept_box")

VIEWS = {
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:],
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x[:, None].expand(4, 3, 6),
    "diagonal": lambda x: x.diagonal(1),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "view": lambda x: x.view(2, 12),
    "view as another type": lambda x: x.view(torch.int32),
    "as_strided": lambda x: x.as_strided((3, 2), (2, 5), 1),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "flatten": lambda x: x.flatten(),
    "unbind": lambda x: x.unbind(1)[4],
    "real": lambda x: torch.view_as_complex(x.view(12, 2)).real,
    "conjugate, imaginary": lambda x: torch.view_as_complex(x.view(12, 2)).conj().imag,
    "hermitian": lambda x: torch.view_as_complex(x.view(4, 3, 2)).mH,
}


def grid(device):
    """24 different numbers."""
    return torch.arange(24.0).reshape(4, 6).clone().to(device)


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory_and_geometry(name):
    """A view has the CPU's geometry and numbers, and the storage of its base."""
    here, there = grid("cpu"), grid("sim")

    expected, view = VIEWS[name](here), VIEWS[name](there)

    assert view._is_view() == expected._is_view()
    assert (view._base is there) == (expected._base is here)
    assert (view.shape, view.stride()) == (expected.shape, expected.stride())
    assert view.storage_offset() == expected.storage_offset()
    assert view.data_ptr() - there.data_ptr() == expected.data_ptr() - here.data_ptr()
    assert view.untyped_storage()._cdata == there.untyped_storage()._cdata
    torch.testing.assert_close(view.cpu(), expected)
