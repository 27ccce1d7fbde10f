"""The simulated GPU in several threads, and in the children of a process."""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
import warnings

import pytest
import torch

from tests.simulator.allocator_check import verify

pytestmark = pytest.mark.usefixtures("one_thread")

RE_INITIALISE = "Cannot re-initialize CUDA in forked subprocess"
THREADS, STEPS = 6, 15
PATIENCE_S = 120


def in_threads(work, arguments):
    """Call a function in a thread for each argument, and give what it returned."""
    found = {}

    def keep(argument):
        try:
            found[argument] = work(argument)
        except BaseException as error:  # noqa: BLE001 -- told by the test
            found[argument] = error

    threads = [threading.Thread(target=keep, args=(each,)) for each in arguments]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


def losses_of_training(seed, device):
    """Five numbers: the losses of a small model on a device, from a seed."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(5, 6, generator=generator).to(device)
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Linear(7, 3))
    for each in model.parameters():
        each.data = torch.randn(each.shape, generator=generator) / 4
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch).t().reshape(-1)[1:].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_six_threads_train_on_two_devices(box):
    """Each thread's numbers are those of the CPU, and the books are exact after."""
    numbers = in_threads(
        lambda seed: losses_of_training(seed, f"sim:{seed % 2}"), range(THREADS)
    )

    for seed in range(THREADS):
        assert numbers[seed] == losses_of_training(seed, "cpu")
    gc.collect()
    for gpu in box.machine.gpus:
        workspaces = sum(block.size for block in gpu.workspaces.values())
        assert torch.sim.memory_allocated(gpu.index) == workspaces
        verify(gpu.allocator)


def in_a_child(work):
    """What a forked child says that the function returned, or why not; how it ended."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():  # that there are threads: torch always has some
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        signal.alarm(PATIENCE_S)
        try:
            answer = str(work())
        except BaseException:  # noqa: BLE001 -- the parent is told
            answer = traceback.format_exc()
        os.write(writing, answer.encode()[-4000:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    return answer, os.waitpid(pid, 0)[1]


USES = {
    "a factory": lambda _: torch.ones(2, device="sim"),
    "an operation": lambda x: x + 1,
    "a backward pass": lambda x: x.requires_grad_().sum().backward(),
    "the memory's figures": lambda _: torch.sim.memory_allocated(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.usefixtures("box")
def test_a_forked_child_cannot_use_the_device(use):
    """After the parent has used the device, a child gets CUDA's own refusal."""
    x = torch.ones(2, device="sim")

    answer, ending = in_a_child(lambda: use(x))

    assert RE_INITIALISE in answer
    assert ending == 0
