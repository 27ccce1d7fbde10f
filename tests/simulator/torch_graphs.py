"""Graphs are captured without effect, and replayed at the price of one launch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpumagic.simulator.backend.refusals import NotSimulated

NOT_PERMITTED = "operation not permitted when stream is capturing"


@pytest.fixture(scope="module")
def machine():
    """An H100 that stands in for CUDA."""
    return {"machine": "h100", "as_cuda": True}


def captured(work):
    """A graph of what a function does, and what the function gave."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


@pytest.mark.usefixtures("kept_box")
def test_a_replay_reads_its_inputs_anew():
    """Each replay computes on what its inputs hold then, into the same result."""
    given = torch.zeros(4, device="cuda")
    graph, result = captured(lambda: (given + 1).sqrt().sum())
    address = result.data_ptr()

    for value in (0.0, 3.0, 8.0):
        given.fill_(value)
        graph.replay()
        assert result.item() == 4 * (value + 1) ** 0.5

    assert result.data_ptr() == address


WAITS = {
    "item": lambda x: x.sum().item(),
    "pageable memory": lambda x: x.copy_(torch.ones(3)),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.usefixtures("kept_box")
def test_the_host_may_not_wait(wait):
    """Waiting for the device during a capture is refused, and spoils nothing."""
    x = torch.ones(3, device="cuda")
    graph = torch.cuda.CUDAGraph()

    with pytest.raises(RuntimeError, match=NOT_PERMITTED), torch.cuda.graph(graph):
        wait(x)

    assert x.sum().item() == 3
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def train(graphed):
    """Losses and parameters of ten steps, with dropout."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(10, 6, 8), torch.randn(10, 6, 4)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    static_input, static_target = inputs[0].cuda(), targets[0].cuda()

    def step():
        loss = nn.functional.mse_loss(model(static_input), static_target)
        loss.backward()
        optimizer.step()
        return loss

    step()  # the optimizer makes its buffers
    optimizer.zero_grad()
    graph, loss = captured(step) if graphed else (None, None)
    torch.cuda.manual_seed(1)
    losses = []
    for data, target in zip(inputs, targets, strict=True):
        static_input.copy_(data)
        static_target.copy_(target)
        if graphed:
            graph.replay()
        else:
            optimizer.zero_grad()
            loss = step()
        losses.append(loss.item())
    return losses, [each.tolist() for each in model.parameters()]


@pytest.mark.usefixtures("kept_box")
def test_a_graphed_training_gives_the_numbers_of_a_plain_one():
    """Forward, backward, dropout and step in a graph: every number is the same."""
    assert train(graphed=True) == train(graphed=False)


def test_a_replay_costs_the_host_one_launch(box):
    """The host pays once for a graph, however much is in it."""
    x = torch.ones(8, device="cuda")

    def work():
        y = x
        for _ in range(100):
            y = y + 1
        return y

    graph, _ = captured(work)
    torch.cuda.synchronize()
    before = box.machine.scheduler.now_ns
    graph.replay()
    replay_ns = box.machine.scheduler.now_ns - before

    assert replay_ns == box.machine.gpus[0].costs.host.graph_replay_ns


@pytest.mark.usefixtures("kept_box")
def test_a_graph_of_several_streams_is_refused_by_name():
    """The work of one stream is captured; the refusal leaves nothing behind."""
    x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()

    def work():
        side.wait_stream(torch.cuda.current_stream())

    with pytest.raises(NotSimulated, match="several streams in one graph"):
        captured(work)
    assert not torch.cuda.is_current_stream_capturing()
    assert (x + 1).tolist() == [2, 2, 2]
