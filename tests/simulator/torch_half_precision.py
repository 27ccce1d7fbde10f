"""Half precision on the simulated GPU: computed in single precision, rounded once."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("kept_box")

HALVES = (torch.float16, torch.bfloat16)


def numbers(*shape):
    """Inputs that are the same everywhere."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def convolution_gradients(x, w):
    """Of the input and the weight of a convolution."""
    wanted = [x.requires_grad_(), w.requires_grad_()]
    out = functional.conv2d(x, w, padding=1)
    return torch.autograd.grad(out, wanted, torch.ones_like(out))


# Each with the shapes that it is called on.
PRODUCTS = {
    "mm": (torch.mm, (33, 65), (65, 17)),
    "addmm": (torch.addmm, (17,), (33, 65), (65, 17)),
    "bmm": (torch.bmm, (3, 9, 65), (3, 65, 7)),
    "matmul": (torch.matmul, (2, 3, 9, 65), (65, 4)),
    "linear": (functional.linear, (9, 65), (7, 65), (7,)),
    "out": (lambda a, b: torch.mm(a, b, out=a.new_empty(0)), (33, 65), (65, 17)),
    "conv2d": (functional.conv2d, (2, 6, 12, 12), (4, 6, 3, 3), (4,)),
    "conv_transpose2d": (functional.conv_transpose2d, (2, 6, 7, 7), (6, 4, 3, 3)),
    "gradients": (convolution_gradients, (2, 6, 7, 7), (4, 6, 3, 3)),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_added_up_in_single_precision(name, dtype):
    """The result is that of single precision, rounded to the type, to the last bit."""
    function, *shapes = PRODUCTS[name]
    given = [numbers(*shape).to(dtype) for shape in shapes]

    expected = function(*(each.float() for each in given))
    got = function(*(each.to("sim") for each in given))

    expected = expected if isinstance(expected, tuple) else (expected,)
    got = got if isinstance(got, tuple) else (got,)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype is dtype
        assert torch.equal(mine.cpu(), theirs.to(dtype))


def test_what_cuda_alone_computes_is_right():
    """Pictures are shrunk in half precision."""
    picture = numbers(1, 2, 8, 8).half()
    options = {"scale_factor": 0.5, "mode": "bilinear", "antialias": True}
    shrunk = functional.interpolate(picture.to("sim"), **options)

    expected = functional.interpolate(picture.float(), **options)
    assert torch.equal(shrunk.cpu(), expected.half())


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(3, 4), (4, 5)]),
        ("bmm", [(2, 3, 4), (2, 4, 5)]),
        ("addmm", [(3, 5), (3, 4), (4, 5)]),
        ("baddbmm", [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    ],
)
def test_a_product_of_halves_gives_single_precision_if_asked_to(name, shapes):
    """As attention and optimisers in bfloat16 ask of CUDA."""
    given = [numbers(*shape).to("sim", torch.bfloat16) for shape in shapes]
    found = getattr(torch, name)(*given, out_dtype=torch.float32)
    wanted = getattr(torch, name)(*(each.cpu().float() for each in given))
    assert found.dtype == torch.float32
    assert found.device.type == "sim"
    torch.testing.assert_close(found.cpu(), wanted)
    into = torch.empty_like(found)
    getattr(torch, name)(*given, out_dtype=torch.float32, out=into)
    torch.testing.assert_close(into, found)
