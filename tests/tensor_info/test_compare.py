from __future__ import annotations

import random

import pytest

from gpumagic.tensor_info import compare

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def grid():
    """24 numbers, four rows of six."""
    return torch.arange(24.0).reshape(4, 6)


def pair(x, y):
    """What the comparison of two says, as plain values."""
    return compare(x, y).to_dict()["pairs"][0]


def test_numpy_shares_memory_over_another_storage():
    """A tensor made of an array is another storage at the same address."""
    array = np.zeros(8, dtype=np.float32)
    made = torch.from_numpy(array)

    for other in (array[2:4], torch.from_numpy(array[2:4])):
        found = pair(made, other)
        assert found["same_storage"] is not True
        assert found["storage_ranges_intersect"]
        assert (found["relation"], found["shared_bytes"]) == ("contains", 8)
    later = torch.from_numpy(array[2:4])
    assert pair(made[2:4], later)["relation"] == "identical"
    assert pair(made[:2], later)["relation"] == "disjoint"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (lambda x: x[0, 0], False),  # a scalar has strides, though none of them
        (lambda x: x[:2], False),
        (lambda x: x.to_sparse(), None),
        (lambda x: x[:2].to_sparse(), None),
        (lambda _: torch.nn.UninitializedParameter(), None),
    ],
    ids=["scalar", "rows", "sparse", "sparse rows", "lazy"],
)
def test_what_has_no_strides_has_no_layout_to_compare(other, same):
    """Of equal sizes alone nothing follows; strides have to be known of both."""
    x = grid()

    assert pair(x, other(x))["same_layout"] is same
    assert pair(other(x), x)["same_layout"] is same


def test_nothing_without_an_address_is_said_to_share():
    """Empty, meta and fake tensors all claim address 0, and share nothing."""
    for x in (torch.zeros(0, 3), torch.zeros(3, device="meta")):
        assert pair(x, torch.zeros_like(x))["same_storage"] is False
        assert pair(x, torch.zeros_like(x))["elements_overlap"] is not True


def test_random_pairs_share_what_their_addresses_share():
    """The bytes in common are those of the elements that both can reach."""
    chance = random.Random(3)  # noqa: S311 - not for secrets
    places = torch.arange(60, dtype=torch.int32)
    for _ in range(300):
        one, other = (
            places.as_strided(
                [chance.randint(1, 3) for _ in range(3)],
                [chance.randint(0, 7) for _ in range(3)],
                chance.randint(0, 10),
            )
            for _ in range(2)
        )
        common = set(one.flatten().tolist()) & set(other.flatten().tolist())
        assert pair(one, other)["shared_bytes"] == len(common) * 4
