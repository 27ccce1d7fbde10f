"""Floating point operations: what is counted, what is not, and what counting spares."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.cuda_sync_time.flops import convolutions_round, products_round, roofline
from gpumagic.cuda_sync_time.report import Setting

torch = pytest.importorskip("torch")
functional = torch.nn.functional
HERE = Setting("cpu", devices=((0, "a processor"),))


def counted_in(run, setting=HERE):
    """The operations of a run that took a second."""
    return roofline(run, torch, setting, 1.0)


# ---------------------------------------------------------------- what is counted


@settings(deadline=None, max_examples=25)
@given(*[st.integers(1, 24)] * 3)
def test_a_matrix_product_is_two_operations_a_step(rows, columns, depth):
    """The count of a product is 2 m n k, whatever the sizes."""
    left, right = torch.ones(rows, depth), torch.ones(depth, columns)

    counted = counted_in(lambda: left @ right)

    assert counted.flops == 2 * rows * columns * depth
    assert counted.counted == (("mm", counted.flops),)
    assert counted.problem is None


def test_operations_come_with_their_shares_largest_first():
    """A convolution and its gradients are told from the product behind it."""
    convolve, join = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8 * 36, 4)
    images = torch.ones(2, 3, 8, 8)

    counted = counted_in(lambda: join(convolve(images).flatten(1)).sum())

    forward = 2 * 2 * 36 * 8 * 3 * 9
    assert counted.counted == (
        ("convolution", forward),
        ("addmm", 2 * 2 * 8 * 36 * 4),
    )
    assert counted.flops == sum(flops for _, flops in counted.counted)


def test_attention_on_the_cpu_is_counted_as_on_a_gpu():
    """Two products forward, five backward, though torch leaves this operator out."""
    query = torch.ones(2, 3, 16, 8, requires_grad=True)

    counted = counted_in(
        lambda: (
            functional.scaled_dot_product_attention(query, query, query)
            .sum()
            .backward()
        ),
    )

    product = 2 * 2 * 3 * 16 * 16 * 8
    assert counted.flops == 7 * product


def test_autocast_counts_in_the_type_that_is_computed_in():
    """Under autocast the operands of a product are no longer float32."""
    sample = torch.ones(8, 8)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            return sample @ sample

    assert counted_in(run).dtype == "bfloat16"


# ---------------------------------------------------------------- what is not counted


def test_where_nothing_can_be_counted_nothing_is_claimed():
    """Element-wise work is not called zero operations; the text says what counts."""
    counted = counted_in(lambda: torch.ones(100).exp().sum())

    assert counted.flops is None
    assert "nothing else is counted" in counted.problem


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch takes the network apart"
)
def test_a_recurrent_network_in_one_piece_is_not_undercounted():
    """One call that torch does not count makes the whole count unknown."""
    network, sample = torch.nn.LSTM(8, 8), torch.ones(5, 2, 8)

    counted = counted_in(lambda: (network(sample), sample[0] @ sample[1].T))

    assert counted.flops is None
    assert "mkldnn_rnn_layer" in counted.problem


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no such\nthing"), "ValueError: no such"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_an_error_costs_the_count_alone(error, words):
    """What the code raises becomes a problem in words, and counting is over."""

    def run():
        raise error

    counted = counted_in(run)

    assert counted.flops is None
    assert counted.problem.endswith(words) or words in counted.problem
    assert counted_in(lambda: torch.ones(2, 2) @ torch.ones(2, 2)).flops == 16


# ---------------------------------------------------------------- compiled code


class Backend:
    """A backend for torch.compile that compiles nothing, and counts how often."""

    def __init__(self):
        self.compiled = 0

    def __call__(self, module, _):
        """Hand the code back as it is."""
        self.compiled += 1
        return module.forward


needs_stance = pytest.mark.skipif(
    not hasattr(torch.compiler, "set_stance"), reason="torch is older than 2.6"
)


@pytest.fixture
def backend():
    """A backend, with what has been compiled forgotten before and after."""
    torch.compiler.reset()
    yield Backend()
    torch.compiler.reset()


@needs_stance
def test_compiled_code_is_counted_uncompiled(backend):
    """A function that was compiled before is counted in full, and stays compiled."""
    sample = torch.ones(8, 8)
    function = torch.compile(lambda each: (each @ each).relu(), backend=backend)
    function(sample)

    counted = counted_in(lambda: function(sample))
    function(sample)

    assert counted.flops == 2 * 8**3
    assert backend.compiled == 1


@needs_stance
def test_counting_first_does_not_keep_code_from_being_compiled(backend):
    """A function first met while counting is compiled at its next call all the same."""
    sample = torch.ones(8, 8)
    function = torch.compile(lambda each: (each @ each).sin(), backend=backend)

    counted_in(lambda: function(sample))
    compiled_by_counting = backend.compiled
    function(sample)

    assert (compiled_by_counting, backend.compiled) == (0, 1)


# ------------------------------------------------------------------------- peaks


@pytest.mark.parametrize(
    ("names", "known"),
    [(["NVIDIA H100 80GB HBM3"] * 2, True), (["H100", "A100"], False), (["?"], False)],
)
def test_the_peak_is_that_of_the_model_of_all_devices(names, known):
    """A card that nobody knows, or several kinds of cards, have none."""
    setting = Setting("cuda", devices=tuple(enumerate(names)))
    sample = torch.ones(8, 8, dtype=torch.bfloat16)

    found = counted_in(lambda: sample @ sample, setting)

    assert (found.peak_flops_per_s is not None) == known
    assert not known or 5e14 < found.peak_flops_per_s < 1e15
    assert counted_in(lambda: sample @ sample).peak_flops_per_s is None


def test_each_switch_of_tf32_is_read_by_the_way_that_was_used():
    """The newer way is asked first; both ways at once contradict each other."""

    class Torn:
        @property
        def allow_tf32(self):
            raise RuntimeError("mixed")

    def torch_with(matmul, cudnn):
        cuda = SimpleNamespace(matmul=matmul)
        return SimpleNamespace(backends=SimpleNamespace(cuda=cuda, cudnn=cudnn))

    newer = SimpleNamespace(fp32_precision="tf32", allow_tf32=False)
    older = SimpleNamespace(allow_tf32=True)
    conv = SimpleNamespace(conv=SimpleNamespace(fp32_precision="ieee"), allow_tf32=True)

    assert products_round(torch_with(newer, older))
    assert products_round(torch_with(older, older))
    assert not products_round(torch_with(Torn(), older))
    assert convolutions_round(torch_with(older, older))
    assert not convolutions_round(torch_with(older, conv))
