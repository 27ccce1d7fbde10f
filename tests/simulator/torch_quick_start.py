"""The first steps on a simulated GPU do not wait for what nobody has asked for."""

from __future__ import annotations

import sys

import torch

import gpumagic


def test_neither_a_copy_under_way_nor_a_capture_imports_the_compiler():
    """torch._dynamo comes with sympy, which takes seconds: nothing is compiled here."""
    with gpumagic.simulate("h100", as_cuda=True):
        host = torch.ones(1 << 20).pin_memory()
        there = host.to("cuda", non_blocking=True)
        host.sum()  # it is looked at while its copy is under way
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            there + 1
        graph.replay()

    assert "torch._dynamo" not in sys.modules
    assert "sympy" not in sys.modules
