"""Models on the simulated GPU: recurrent, compiled, captured and counted."""

from __future__ import annotations

import pytest
import torch
import torch.fx.experimental.proxy_tensor
from torch import nn

from tests.simulator.small_models import numbers, on_both

pytestmark = pytest.mark.usefixtures("kept_box")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks_on_sequences_of_different_lengths(kind):
    """Packed sequences go through, and are padded again, as on the CPU."""

    def workload(device):
        torch.manual_seed(0)
        model = kind(4, 5).to(device)
        x = numbers(7, 3, 4).to(device).requires_grad_()
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 5, 2]))
        out, lengths = nn.utils.rnn.pad_packed_sequence(model(packed)[0])
        out.square().sum().backward()
        return out, lengths, x.grad

    on_both(workload)
