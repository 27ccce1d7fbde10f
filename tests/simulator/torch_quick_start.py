"""The first steps on a simulated GPU do not wait for what nobody has asked for."""

from __future__ import annotations

import sys

import torch

import gpumagic


def test_a_copy_under_way_does_not_import_the_compiler():
    """torch._dynamo comes with sympy, which takes seconds: nothing is compiled here."""
    with gpumagic.simulate("h100", as_cuda=True):
        host = torch.ones(1 << 20).pin_memory()
        host.to("cuda", non_blocking=True)
        host.sum()  # it is looked at while its copy is under way

    assert "torch._dynamo" not in sys.modules
    assert "sympy" not in sys.modules
