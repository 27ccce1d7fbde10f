from __future__ import annotations

import random
import subprocess
import sys

import pytest

from gpumagic.tensor_info import describe

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def grid():
    """24 numbers, four rows of six."""
    return torch.arange(24.0).reshape(4, 6)


def test_random_views_agree_with_torch():
    """Whatever views are stacked, the figures are torch's own."""
    chance = random.Random(7)  # noqa: S311 - not for secrets
    for _ in range(300):
        x = torch.empty([chance.randint(1, 4) for _ in range(4)])
        for _ in range(chance.randint(0, 4)):
            dim, other = chance.randrange(4), chance.randrange(4)
            x = chance.choice(
                [
                    x.transpose(dim, other),
                    x.narrow(dim, 0, max(1, x.size(dim) - 1)),
                    x[::2],
                    x.contiguous(memory_format=torch.channels_last),
                    x[:1].expand(3, -1, -1, -1),
                ]
            )
        found = describe(x)
        assert found.size == tuple(x.size())
        assert found.stride == x.stride()
        assert found.storage_offset == x.storage_offset()
        assert found.address == x.data_ptr()
        assert found.is_contiguous == x.is_contiguous()
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        assert found.is_channels_last == channels_last
        assert found.contiguous_allocates_bytes == (
            0 if x.contiguous().data_ptr() == x.data_ptr() else x.numel() * 4
        )


def test_an_unknown_address_is_said_and_zero_is_taken():
    """Without memory sectors count from 0, and are called a guess."""
    found = describe(torch.empty(64, device="meta"))

    assert found.address is None
    assert found.warp_along_dim[0].sectors == 4
    assert "its sectors are a guess" in " ".join(str(found.show("how")).split())


def test_a_numpy_array_has_strides_in_elements_and_keeps_its_own():
    """A numpy slice has an offset into the array that owns its memory."""
    owner = np.arange(24, dtype=np.int16).reshape(4, 6)

    found = describe(owner[1:, ::2])

    assert found.kind == "numpy array"
    assert (found.dtype, found.device, found.itemsize) == ("int16", "cpu", 2)
    assert found.stride == (6, 2)
    assert (found.storage_offset, found.storage_bytes) == (6, 48)
    assert found.address == owner.ctypes.data + 12
    assert found.is_view


def test_odd_steps_in_bytes_cost_the_layout_and_one_remark():
    """A field of a structured array has no strides in elements, and says so."""
    records = np.zeros(4, dtype=[("flag", "i1"), ("value", "f4")])

    found = describe(records["value"])

    assert found.stride is None
    assert found.is_contiguous is None
    assert "no multiples of its itemsize" in found.remarks[0]


def test_arrays_need_no_torch():
    """A numpy array is described in a process where nobody has imported torch."""
    code = (
        "import sys, numpy as np\n"
        "from gpumagic.tensor_info import describe\n"
        "assert describe(np.zeros((2, 3)).T, values=True).stride == (1, 3)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
