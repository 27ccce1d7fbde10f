"""Each torch operator goes by the rule that fits it, or says that none does."""

from __future__ import annotations

import pytest

from gpumagic.simulator.operators import Kind, dtype_word, rule_for


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm.out", Kind.MATMUL),
        ("aten::_foreach_add_.List", Kind.ELEMENTWISE),
        ("aten::__ilshift__.Tensor", Kind.ELEMENTWISE),
        ("aten::max.other", Kind.ELEMENTWISE),
        ("aten::max.dim", Kind.REDUCTION),
        ("aten::isin.Tensor_Tensor", Kind.REARRANGEMENT),
        ("aten::select_copy.int", Kind.COPY),
        ("aten::_fft_r2c", Kind.UNMODELLED),
        ("other::mm", Kind.UNMODELLED),
    ],
)
def test_an_operator_finds_its_rule_by_name(name, kind):
    """In-place, out and foreach variants go by the rule of the plain operator."""
    assert rule_for(name).kind is kind


def test_what_torch_counts_flops_for_uses_them():
    """An operator with a formula of torch's is not costed by its bytes alone."""
    pytest.importorskip("torch")
    from torch.utils.flop_counter import flop_registry

    counted = {str(op).replace("aten.", "aten::") for op in flop_registry}

    for name in counted - {"flex_attention", "flex_attention_backward"}:
        assert rule_for(name).uses_flops, name


def test_operators_with_an_answer_for_the_host_wait():
    """What must know a value of the device before it can go on waits for it."""
    waiting = "_local_scalar_dense equal nonzero _unique2 repeat_interleave.Tensor"
    for name in waiting.split():
        assert rule_for(f"aten::{name}").waits, name
    for name in ("nonzero_static", "masked_fill.Scalar", "index.Tensor", "mm"):
        assert not rule_for(f"aten::{name}").waits, name


def test_a_type_has_a_word():
    """A torch type has a word, by which the rates of a device go."""
    words = [*map(dtype_word, ("float32", "torch.float32", "float64", "float8_new"))]
    assert words == ["fp32", "fp32", "fp64", "fp32"]
