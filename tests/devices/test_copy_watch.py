"""Copies noted by line, shown on copies within the host: the same place in torch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices.copy_watch import watched_at
from gpumagic.errors import DeviceError
from gpumagic.report.places import code_line

torch = pytest.importorskip("torch")

DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)


@pytest.fixture(autouse=True)
def one_thread():
    """Few numbers need no pool of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def watched():
    """Copies from the CPU to itself, which take the same way as those to a GPU."""
    return watched_at(torch, "cpu", "CPU")


def is_free(key="CPU"):
    """Whether torch's place for a kernel of its own is empty."""
    taken = torch._C._dispatch_has_kernel_for_dispatch_key
    return not taken("aten::copy_", key)


def sources(seen):
    """The lines that have copied."""
    return [code_line(each.mark).source for each in seen]


def test_each_copy_is_noted_with_line_bytes_and_way():
    """Whatever words lead to a copy, it is noted where they stand, as it was asked."""
    target, source = torch.zeros(4), torch.ones(4)

    with watched() as seen:
        target.copy_(source)
        target.copy_(source, non_blocking=True)
        target[1:] = source[1:]
        source.to(torch.float64, non_blocking=True)

    assert sources(seen) == [
        "target.copy_(source)",
        "target.copy_(source, non_blocking=True)",
        "target[1:] = source[1:]",
        "source.to(torch.float64, non_blocking=True)",
    ]
    assert [each.nbytes for each in seen] == [16, 16, 12, 16]
    assert [each.non_blocking for each in seen] == [False, True, False, True]
    assert not any(each.pinned for each in seen)
    assert all(each.held_s > 0 for each in seen)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_stays_after_an_error(error):
    """However the block ends, torch copies by itself again, at once."""

    def fail():
        with watched():
            raise error

    with pytest.raises(error) as kept:  # and with it all that the frames hold
        fail()

    assert is_free()
    assert kept.traceback


def test_a_second_watch_is_refused_and_the_first_goes_on():
    """Two at the same place would hide each other's copies."""
    with watched() as seen:
        with pytest.raises(DeviceError, match="somebody watches"), watched():
            pass
        torch.zeros(2).copy_(torch.ones(2))

    assert len(seen) == 1
    assert is_free()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 4), max_size=3),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    flips=st.booleans(),
)
def test_what_is_copied_is_the_same_as_unwatched(sizes, dtypes, flips):
    """Values, classes and shapes do not depend on being watched."""
    source = torch.arange(torch.Size(sizes).numel()).reshape(sizes).to(dtypes[0])
    source = source.mT if flips and source.dim() > 1 else source
    plain = source.to(dtypes[1], copy=True)

    with watched() as seen:
        noted = source.to(dtypes[1], copy=True)

    assert torch.equal(noted, plain)
    assert (noted.dtype, noted.stride()) == (plain.dtype, plain.stride())
    assert sum(each.nbytes for each in seen) == source.nbytes
