"""Forked kernels are as those that are started, and a product is what torch computes."""

from __future__ import annotations


import nbformat
import pytest

from tests.notebooks.running import executed, said
from tests.quick_kernels import _remembering, quick_kernels

torch = pytest.importorskip("torch")

ALONE = """
import os, sys
before = [name for name in sys.modules if name.partition(".")[0] in ("torch", "sympy")]
import torch
import torch.nn.functional
import torch._inductor.config
f"{os.getpgid(0) == os.getpid()} {before} {torch is sys.modules['torch']} {torch.ones(2).sum()}"
"""


@pytest.mark.kernel
def test_each_kernel_begins_without_torch_and_in_a_group_of_its_own():
    """A signal to one meets nobody else, and a first cell imports torch as ever."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(ALONE)])

    with quick_kernels():
        seen = [said(executed(notebook).cells[0]) for _ in range(2)]

    assert seen == ["True [] True 2.0"] * 2


def test_a_product_is_computed_once_for_the_same_factors():
    """Changed in place, a factor or a result has another product or none."""
    computed = []

    def multiply(first, second):
        computed.append(first)
        return torch.matmul(first, second)

    product = _remembering(torch, multiply, 2)
    a, b = torch.rand(512, 512), torch.rand(512, 512)
    expected = a @ b

    product(a, b).zero_()
    assert product(a, b).equal(expected)
    assert len(computed) == 1
    a[300, 300] = 2.0
    assert product(a, b).equal(a @ b)
    assert product(a.t(), b).equal(a.t() @ b)
    assert product(a, b.clone()).equal(a @ b)
    assert len(computed) == 3
