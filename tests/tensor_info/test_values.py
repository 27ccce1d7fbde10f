from __future__ import annotations

import math
import unittest.mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.tensor_info import compare, describe, values

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


@pytest.mark.parametrize("of", [torch.full, np.full])
def test_every_one_of_many_values_is_read(of):
    """A single NaN among millions, in the last place, is found with its index."""
    x = of((1500, 2000), 3.0)
    x[-1, -1] = float("nan")

    found = describe(x, values=True).values

    assert (found.nan_count, found.first_nan) == (1, (1499, 1999))
    assert (found.minimum, found.mean) == (3.0, 3.0)


@pytest.mark.parametrize("of", [torch.full, np.full])
def test_the_mean_of_many_values_is_as_exact_as_double_precision(of):
    """What float32 cannot tell from 1 stays apart, and long sums lose no digits."""
    near_one = 1 + 2.0**-30
    double = of((8,), near_one, dtype=np.float64 if of is np.full else torch.float64)
    single = of((1500, 2000), 16_777_215.0)

    found = [describe(each, values=True).values for each in (double, single)]

    assert [each.mean for each in found] == [near_one, 16_777_215.0]
    assert (found[0].minimum, found[0].maximum) == (near_one, near_one)


SIZES = st.lists(st.integers(0, 9), max_size=4)
ODD = st.sampled_from((1.5, -2.0, 0.0, 3.0, float("nan"), float("inf"), float("-inf")))


@given(SIZES, st.data(), st.sampled_from((1, 5, 64)), st.booleans(), st.booleans())
def test_figures_are_those_of_all_elements(size, data, piece, transposed, repeated):
    """Read in pieces of any size and order, all counts and places are torch's own."""
    count = math.prod(size)
    numbers = data.draw(st.lists(ODD, min_size=count, max_size=count))
    x = torch.tensor(numbers).reshape(size)
    if transposed and len(size) > 1:
        x = x.transpose(0, -1)
    if repeated:
        x = x.unsqueeze(-1).expand(*x.shape, 3)

    with unittest.mock.patch.object(values, "_PIECE", piece):
        found, why = values.summarise(x)

    finite = x[x.isfinite()]
    assert why == ""
    assert (found.nan_count, found.inf_count) == (x.isnan().sum(), x.isinf().sum())
    assert found.zero_count == (x == 0).sum()
    if len(finite):
        assert (found.minimum, found.maximum) == (finite.min(), finite.max())
        assert found.mean == pytest.approx(float(finite.double().mean()))
    for mask, first in ((x.isnan(), found.first_nan), (x.isinf(), found.first_inf)):
        places = mask.nonzero().tolist()
        assert first == (tuple(places[0]) if places else None)


@pytest.mark.parametrize(
    "x",
    [torch.zeros(1).expand(10**9), np.broadcast_to(np.zeros(1), 10**9)],
    ids=["torch", "numpy"],
)
def test_what_is_repeated_in_memory_is_read_once(x):
    """Where a billion elements are one, that one is read, and counted for all."""
    with unittest.mock.patch.object(values, "_PIECE", 1):
        found, _ = values.summarise(x)

    assert (found.mean, found.zero_count) == (0.0, 10**9)


def test_a_tile_is_the_mean_of_what_is_finite_in_it():
    """Rows and columns are cut into blocks; what lies between is in each of them."""
    x = torch.arange(30.0 * 50 * 2).reshape(30, 2, 50)
    x[0, 0, 0], x[29, 1, 49] = float("nan"), float("-inf")

    heat = describe(x, values=True).values.heat

    (high, wide), tiles = heat.block, len(heat.means)
    assert (heat.dims, heat.block) == ((0, 2), (3, 4))
    for row, column in ((0, 0), (3, 7), (tiles - 1, len(heat.means[0]) - 1)):
        block = x[row * high :, :, column * wide :][:high, :, :wide]
        mean = block[block.isfinite()].mean()
        assert heat.means[row][column] == pytest.approx(float(mean))
    assert (heat.marks[0][0], heat.marks[-1][-1]) == ("NaN", "inf")
    assert sum(mark != "" for row in heat.marks for mark in row) == 2


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "bool", "uint8", "uint16", "complex64"]
)
def test_values_of_every_dtype_can_be_read(dtype):
    """What has no minimum of its own is read as a wider dtype; complex has none."""
    x = torch.tensor([[0, 1], [1, 1]]).to(getattr(torch, dtype))

    found = describe(x, values=True).values

    assert found.zero_count == 1
    if dtype == "complex64":  # has neither an order nor a picture
        assert (found.maximum, found.heat) == (None, None)
    else:
        assert found.heat.means == ((0.0, 1.0), (1.0, 1.0))
        assert found.maximum == 1.0


def test_reading_values_keeps_no_graph_and_uses_no_random_number():
    """The tensor has the same version and gradient, and the generator its state."""
    x = torch.ones(40, 3, requires_grad=True)
    state = torch.random.get_rng_state()

    describe(x, values=True)

    assert x.grad_fn is None
    assert x.grad is None
    assert x._version == 0
    assert torch.equal(torch.random.get_rng_state(), state)


def test_headline_of_several_says_first_whether_their_values_are_sound():
    """With values asked for, a NaN in one of them is in the first line."""
    x, broken = torch.ones(3), torch.tensor([1.0, math.nan])

    def told(*xs, names="xy", **options):
        return compare(*xs, expressions=[*names], **options).headline

    assert told(x, broken, values=True) == "NaN or inf in y; x and y share no elements"
    assert told(x, x + 1, values=True) == "no NaN or inf; x and y share no elements"
    assert told(broken, x, names="ff", values=True).startswith("NaN or inf in f; ")
    assert told(x, broken) == "x and y share no elements"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.ones(2, device="meta"),
        lambda: np.array([None, 1]),
        lambda: np.array(["a"]),
    ],
)
def test_values_that_cannot_be_read_are_said_so_first(make):
    """Who asks for values is not answered with a layout; beside others it is a note."""
    x = make()

    both = str(compare(torch.ones(2), x, expressions=("x", "y"), values=True))
    assert "tensor: the values cannot be read: " in describe(x, values=True).headline
    assert "the values of y cannot be read" in both
    assert "Tensor" in both
