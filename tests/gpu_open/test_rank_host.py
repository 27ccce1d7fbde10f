"""What a trace tells of the host: phases, steps, lines, what it did with others."""

from __future__ import annotations

import pytest

from gpumagic.gpu_open.rank_trace import kind_of_kernel, rank_of
from tests.gpu_open.rows import (
    AUTOGRAD,
    MAIN,
    NODE,
    OTHER,
    host,
    kernel,
    nccl,
    ns,
    trace,
)


def launched_at(*moments, thread=MAIN):
    """A call at each of these moments, and a kernel of 10 ns for each, much later."""
    calls = [host("cudaLaunchKernel", at, at + 1, thread) for at in moments]
    work = [
        kernel(1000 + 20 * n, 1010 + 20 * n, call=call) for n, call in enumerate(calls)
    ]
    return work, calls


# ------------------------------------------------------------------------- phases

OPERATORS = [
    host(f"{NODE}AddmmBackward0", 100, 120, AUTOGRAD),
    host(f"{NODE}torch::autograd::AccumulateGrad", 130, 140, AUTOGRAD),
    host(f"{NODE}AddmmBackward0", 300, 320, AUTOGRAD),
]
MARKS = [
    host("Optimizer.step#Adam.step", 200, 220),
    host("enumerate(DataLoader)#_Iter.__next__", 5, 15),
    host("enumerate(DataLoader)#_Iter.__next__", 230, 235),
]


@pytest.mark.parametrize(
    ("thread", "moment", "phase"),
    [
        (MAIN, 50, "forward"),
        (AUTOGRAD, 110, "backward"),
        (AUTOGRAD, 125, "backward"),  # between two nodes, such as DDP's reducer
        (MAIN, 150, ""),  # gradients are clipped
        (MAIN, 210, "optimizer"),
        (MAIN, 250, "forward"),
        (OTHER, 110, ""),  # whoever copies the next batch meanwhile
        (MAIN, 400, ""),  # validation, as far as anybody knows
    ],
)
def test_a_launch_is_in_the_phase_that_the_host_was_in(thread, moment, phase):
    """Forward is what a backward follows; between that and the optimizer is neither."""
    work, calls = launched_at(moment, thread=thread)

    rank = rank_of(trace(work, calls, OPERATORS, MARKS))

    device = [(name, ns(s)) for name, s in rank.phases if name != "input"]
    assert device == ([(phase, 10)] if phase else [])
    assert dict(rank.phases)["input"] == pytest.approx(15e-9)


def test_launches_are_the_calls_that_give_the_device_work():
    """A driver's call within the runtime's is the same; a copy that waits counts."""
    calls = [
        host("cudaLaunchKernelExC", 0, 10),
        host("cuLaunchKernelEx", 2, 8),
        host("cudaEventRecord", 12, 13),
        host("hipMemcpyWithStream", 20, 30),
        host("cudaDeviceSynchronize", 40, 50),
        host("cudaGraphLaunch", 45, 46, OTHER),
    ]

    assert rank_of(trace([kernel(60, 70)], calls)).launches == 3


def test_without_device_work_the_host_is_all_that_is_told():
    """There is no length; whether anything was launched is unknown."""
    operators = [host("aten::mm", 100, 160), host("aten::item", 170, 200)]

    rank = rank_of(trace(operators=operators, since_1970=True))

    assert (rank.length_s, rank.launches) == (0.0, None)
    assert rank.host_length_s == pytest.approx(100e-9)
    assert [name for name, _ in rank.lanes] == ["host"]
    assert rank.zero_ns == 100


def test_a_group_counts_by_its_own_numbers_where_all_have_one():
    """Where one is missing, by the order of the calls: streams may have another."""
    calls = [host("cudaLaunchKernel", at, at + 1) for at in (10, 20, 30, 40, 50)]
    numbered = {"Process Group Name": "0", "Group size": 2}
    rank = rank_of(
        trace(
            [
                nccl(100, 110, calls[1], **numbered, Seq=5),
                nccl(120, 130, calls[0], **numbered, Seq=4),
                nccl(140, 150, calls[4], **{"Process Group Name": "tp"}, Seq=9),
                nccl(160, 170, calls[2], **{"Process Group Description": "tp"}),
                nccl(180, 190, calls[3]),
            ],
            calls,
        )
    )

    assert [(each.group, each.number, each.numbered) for each in rank.collectives] == [
        ("0", 5, True),
        ("0", 4, True),
        ("tp", 1, False),
        ("tp", 0, False),
        ("", 0, False),
    ]


@pytest.mark.parametrize(
    ("kernel_name", "told", "name"),
    [
        ("ncclDevKernel_SendRecv(x)", None, "send_recv"),
        ("ncclDevKernel_SendRecv(x)", "all_to_allv", "all_to_all"),
        ("k", "reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("ncclDevKernel_Generic(x)", "coalesced", "coalesced"),
    ],
)
def test_a_collective_has_one_name_however_libraries_spell_it(kernel_name, told, name):
    """What the file tells counts before the kernel's name."""
    work = [nccl(10, 20, name=kernel_name, **{"Collective name": told or ""})]

    assert rank_of(trace(work)).collectives[0].name == name


def test_the_mark_round_its_call_tells_what_an_exchange_was_for():
    """Without args of its own, as in older traces: all sends look alike otherwise."""
    calls = [host("cudaLaunchKernel", 10, 11)]
    marks = [host("nccl:all_to_all", 8, 12)]

    (each,) = rank_of(trace([nccl(20, 30, calls[0])], calls, marks=marks)).collectives

    assert each.name == "all_to_all"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "matrix product"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_nhwckrsc", "convolution"),
        ("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "attention"),
        ("elementwise_kernel<128, 2, direct_copy_kernel>", "indexing and copies"),
        ("split_embedding_backward_rowwise_adagrad", "indexing and copies"),
        ("distribution_elementwise_grid_stride_kernel<uniform>", "random numbers"),
        ("multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor>", "optimizer"),
        ("triton_per_fused__softmax_mul_3", "compiled"),
        ("aten::mm", "matrix product"),  # simulated
    ],
)
def test_kernels_are_told_by_what_they_work_out(name, kind):
    """In the words of a reader, by the names that libraries give."""
    assert kind_of_kernel(name) == kind
