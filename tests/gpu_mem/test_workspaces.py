"""What cuBLAS keeps is told by its size, or by the stack that has taken it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gpumagic.gpu_mem.balance import (
    PROBABLY_WORKSPACES,
    workspaces,
)

MIB = 1 << 20
SIZE = 32 * MIB


@pytest.fixture(autouse=True)
def _a_torch_that_tells_the_size(monkeypatch):
    core = SimpleNamespace(_cuda_getCublasWorkspaceSize=lambda: SIZE)
    torch = SimpleNamespace(cuda=SimpleNamespace(), _C=core)
    monkeypatch.setitem(sys.modules, "torch", torch)


def block(requested, *, state="active_allocated", frames=()):
    """A block as torch tells it, of the next whole mebibyte."""
    size = -(-requested // MIB) * MIB
    return {
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": list(frames),
    }


def found(*blocks, named=(), nameless=1 << 40, stream=0):
    """Address and name of what is told of one segment that begins at 1 GiB."""
    segment = {"device": 0, "address": 1 << 30, "stream": stream, "blocks": blocks}
    its = workspaces("cuda", named, nameless, lambda: [segment])
    return [(each.address - (1 << 30), each.name) for each in its]


def test_a_nameless_block_of_its_size_is_one_probably():
    """To the byte as it was asked for, in use, and reached by no name."""
    freed = block(SIZE, state="inactive")
    told = found(block(SIZE - 1), block(SIZE), freed, block(SIZE), named={(0, 1 << 30)})

    assert told == [(SIZE, PROBABLY_WORKSPACES), (3 * SIZE, PROBABLY_WORKSPACES)]


def test_a_block_with_a_name_is_none():
    """Also where the name leads into the middle of it."""
    assert found(block(SIZE), named={(0, (1 << 30) + MIB)}) == []
    assert found(block(SIZE), named={(0, (1 << 30) + SIZE), (1, 1 << 30)}) != []


def test_many_blocks_of_its_size_are_not_all_taken_for_its():
    """A stream has one of the notebook's thread and one of backward passes."""
    assert len(found(*[block(SIZE)] * 5)) == 2
