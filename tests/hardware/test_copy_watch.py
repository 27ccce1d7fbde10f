"""Copies to a real GPU, noted by line; a training cell watched there."""

from __future__ import annotations

import pytest

from gpumagic.devices.copy_watch import copies_watched
from gpumagic.pin_loader.api import watch
from gpumagic.report.places import code_line

pytestmark = pytest.mark.usefixtures("runtime")
MIB = 1 << 20


def sources(seen):
    """The lines that have copied."""
    return [code_line(each.mark).source for each in seen]


def test_the_four_ways_are_told_apart(torch):
    """Pinned or not, blocking or not: as it really was, with all bytes."""
    pageable = torch.ones(MIB)
    pinned = pageable.pin_memory()

    with copies_watched(torch, "cuda") as seen:
        pageable.to("cuda")
        pageable.to("cuda", non_blocking=True)
        pinned.cuda()
        pinned.cuda(non_blocking=True)
    torch.cuda.synchronize()

    assert sources(seen) == [
        'pageable.to("cuda")',
        'pageable.to("cuda", non_blocking=True)',
        "pinned.cuda()",
        "pinned.cuda(non_blocking=True)",
    ]
    assert [(each.pinned, each.non_blocking) for each in seen] == [
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    ]
    assert {each.nbytes for each in seen} == {4 * MIB}


@pytest.mark.times
def test_only_pinned_and_not_blocking_lets_the_host_go(torch):
    """A large copy holds the host many times longer in the other three ways."""
    pageable = torch.ones(64 * MIB)
    pinned = pageable.pin_memory()
    target = torch.empty(64 * MIB, device="cuda")

    def ways():
        target.copy_(pageable)
        target.copy_(pinned)
        target.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()

    ways()
    with copies_watched(torch, "cuda") as seen:
        for _ in range(5):
            ways()

    # The least of five: a busy host may hold up any call.
    held = [min(each.held_s for each in seen[way::3]) for way in range(3)]
    assert held[0] > 5 * held[2]
    assert held[1] > 5 * held[2]


def test_a_conversion_is_told_by_what_goes_over(torch):
    """Blocking, the host converts first, into pageable memory; else the GPU does."""
    pinned = torch.ones(MIB, dtype=torch.uint8).pin_memory()

    with copies_watched(torch, "cuda") as seen:
        pinned.to("cuda", torch.float32)
        pinned.to("cuda", torch.float32, non_blocking=True)
    torch.cuda.synchronize()

    assert len(seen) == 2
    assert (seen[0].nbytes, seen[0].pinned) == (4 * MIB, False)
    assert (seen[1].nbytes, seen[1].pinned) == (MIB, True)


def test_whatever_copies_is_seen(torch):
    """Modules, factories, slices and packed sequences copy on the user's line."""
    model = torch.nn.Linear(8, 8)
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    there = torch.zeros(16, device="cuda")

    with copies_watched(torch, "cuda") as seen:
        model.to("cuda")
        torch.tensor([1.0, 2.0], device="cuda")
        packed.to("cuda")
        there[:8] = torch.ones(8)
    by_line = {}
    for each, source in zip(seen, sources(seen), strict=True):
        by_line[source] = by_line.get(source, 0) + each.nbytes

    assert by_line == {
        'model.to("cuda")': (8 * 8 + 8) * 4,
        'torch.tensor([1.0, 2.0], device="cuda")': 8,
        'packed.to("cuda")': 5 * 4,
        "there[:8] = torch.ones(8)": 32,
    }


def test_work_on_the_device_is_not_noted(torch):
    """Copies within the device and to the host are let through, and right."""
    there = torch.arange(16.0, device="cuda")

    with copies_watched(torch, "cuda") as seen:
        cloned = there.clone()
        halves = there.half().float()
        back = there.cpu()
        ((there * 2 + 1).sum() / 3).item()

    assert torch.equal(cloned, there)
    assert torch.equal(halves, there)
    assert back.tolist() == list(range(16))
    assert seen == []


def test_training_and_its_gradients_are_the_same(torch):
    """A step forward, backward and of the optimizer gives the same numbers."""

    def train():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
        ).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            batch = torch.randn(32, 64).pin_memory().to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    plain = train()
    with copies_watched(torch, "cuda") as seen:
        watched = train()

    assert all(torch.equal(*pair) for pair in zip(plain, watched, strict=True))
    assert sum(each.nbytes for each in seen if each.non_blocking) == 3 * 32 * 64 * 4


def test_compiled_functions_are_not_compiled_anew(torch):
    """What torch.compile has made runs on, and its copies are seen."""
    compiled = torch.compile(lambda x: (x * 2).relu() + 1)
    x = torch.ones(64, device="cuda")
    compiled(x)
    frames = dict(torch._dynamo.utils.counters["frames"])

    with copies_watched(torch, "cuda"):
        result = compiled(x)

    assert result.sum().item() == 3 * 64
    assert dict(torch._dynamo.utils.counters["frames"]) == frames


@pytest.mark.parametrize("pinned", [False, True])
def test_a_training_cell_is_told_by_line(torch, pinned):
    """Each line has how much it copied, and from where."""
    rows = torch.zeros(8, 16 * MIB)
    loader = torch.utils.data.DataLoader(rows, 1, pin_memory=pinned)

    def train():
        for batch in loader:
            batch.to("cuda", non_blocking=pinned).mul_(2).sum()

    train()
    report = watch(train)

    (line,) = report.copies
    assert line.nbytes == rows.nbytes
    assert line.pageable_bytes == (0 if pinned else line.nbytes)
    assert line.blocking == (0 if pinned else 8)
    assert [(each.loader, len(each.waits.seconds)) for each in report.waits] == [
        ("loader", 8)
    ]
