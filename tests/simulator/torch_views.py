"""Views on the simulated GPU: torch's own, on the memory of their base."""

from __future__ import annotations

import pytest
import torch

from gpumagic.simulator.accesses import Accesses
from gpumagic.simulator.backend.addresses import operand_of

pytestmark = pytest.mark.usefixtures("kept_box")

VIEWS = {
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:],
    "steps": lambda x: x[:, ::2],
    "select": lambda x: x[2],
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x[:, None].expand(4, 3, 6),
    "permute": lambda x: x.permute(1, 0),
    "diagonal": lambda x: x.diagonal(1),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "view": lambda x: x.view(2, 12),
    "view as another type": lambda x: x.view(torch.int32),
    "as_strided": lambda x: x.as_strided((3, 2), (2, 5), 1),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "chunk": lambda x: x.chunk(2)[1],
    "split": lambda x: x.split(3, 1)[1],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "unbind": lambda x: x.unbind(1)[4],
    "squeeze": lambda x: x[:1].squeeze(0),
    "movedim": lambda x: x.movedim(0, 1),
    "real": lambda x: torch.view_as_complex(x.view(12, 2)).real,
    "imaginary": lambda x: torch.view_as_complex(x.view(12, 2)).imag,
    "conjugate": lambda x: torch.view_as_complex(x.view(12, 2)).conj(),
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


# torch forbids writing where one element stands for several.
@pytest.mark.parametrize("name", [name for name in VIEWS if name != "expand"])
def test_what_is_written_through_a_view_is_in_the_base(name):
    """In-place operations on a view change the base, and the other way round."""
    here, there = grid("cpu"), grid("sim")

    for x in (here, there):
        view = VIEWS[name](x)
        view.mul_(3)
        x[2, 2] = 7.0
        view += 1

    torch.testing.assert_close(there.cpu(), here)
    torch.testing.assert_close(VIEWS[name](there).cpu(), VIEWS[name](here))


def test_only_a_reshape_that_must_copies():
    """A reshape that fits is a view; one that does not has memory of its own."""
    x = grid("sim")

    fits, copies = x.reshape(3, 8), x.t().reshape(24)

    assert fits.data_ptr() == x.data_ptr()
    assert copies.data_ptr() != x.data_ptr()
    assert copies.tolist() == grid("cpu").t().reshape(24).tolist()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(-1)


def test_gradients_flow_through_views_that_were_written():
    """Writing into views of what needs gradients gives the CPU's gradients."""
    gradients = []
    for device in ("cpu", "sim"):
        leaf = grid(device).requires_grad_()
        x = leaf * 1
        x[1].mul_(2)
        x.t()[0] = x[3, :4].clone() ** 2
        x.sum().backward()
        gradients.append(leaf.grad.tolist())

    assert gradients[0] == gradients[1]


def test_geometry_changes_in_place():
    """t_, squeeze_, resize_ and set_ change a tensor as they do on the CPU."""
    results = []
    for device in ("cpu", "sim"):
        x = grid(device)
        alias = x.view(24)
        x.t_().unsqueeze_(0).squeeze_(0)
        y = grid(device).resize_(2, 2)
        y.add_(1)
        larger = grid(device)
        larger.resize_(5, 6)[4] = 0.0
        z = torch.empty(0, device=device).set_(alias.untyped_storage(), 2, (3,), (4,))
        z.add_(100)
        results.append([each.tolist() for each in (x, alias, y, larger, z)])

    assert results[0] == results[1]


def test_data_is_exchanged():
    """Assigning `.data` gives a tensor other memory, and leaves it what it is."""
    x = torch.ones(3, device="sim", requires_grad=True)
    y = torch.zeros(2, 2, device="sim")

    x.data = y
    y.add_(5)

    assert x.requires_grad
    assert x.tolist() == [[5.0, 5.0], [5.0, 5.0]]


def test_a_mutation_is_seen_by_all_who_share():
    """Tensors set onto one storage see each other's writes, whatever their types."""
    x = torch.zeros(4, device="sim")
    bits = x.view(torch.int32)
    other = torch.empty(0, device="sim").set_(x)

    other[1] = 1.0

    assert x.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert bits.tolist() == [0, 0x3F800000, 0, 0]


class Owned:
    """Memory whose accesses are followed."""

    accesses = Accesses(96)


@pytest.mark.parametrize("name", [*VIEWS][:9])
def test_the_bytes_of_a_view_are_those_of_its_elements(name):
    """Where a view begins and ends, and what it touches, is what its elements say."""
    seen = VIEWS[name](torch.arange(24.0).reshape(4, 6))
    touched = {int(each) * 4 for each in seen.flatten()}  # each element is its place

    (_, low, high, layout), nbytes = operand_of(seen, Owned())

    assert (low, high) == (min(touched), max(touched) + 4)
    assert nbytes == len(touched) * 4
    assert (layout is None) == (nbytes == high - low)
