"""What strangers ask, answered by what is in sight: three questions for each magic."""

from __future__ import annotations

import re

import pytest

from tests.gallery.samples import drawn

# The question, the view that somebody looks at who has it, and where its answer stands.
QUESTIONS = (
    ("Can I use the GPU?", "gpu_doctor-laptop", "No GPU here"),
    ("There is none: what now?", "gpu_doctor-laptop", "%gpu_select --simulate h100"),
    (
        "Did this cell start CUDA?",
        "gpu_doctor-cell-that-started-cuda",
        "CUDA was started",
    ),
    ("Which GPU is cuda:0?", "gpu_select-selected", "cuda:0 is GPU 2"),
    (
        "Why can I not choose?",
        "gpu_select-too-late",
        "by import kornia",
    ),
    ("Who has GPU 1?", "gpu_select-free-refused", "claimed by pid 4242"),
    ("Is my GPU busy?", "cuda_sync_time-small-work", "the GPU works 600 us of it"),
    ("What slows it down?", "cuda_sync_time-small-work", "launching takes 3.20 ms"),
    ("Do my GPUs work at once?", "cuda_sync_time-turns", "sim:1 ····"),
    ("Which line waits?", "cuda_sync_time-syncs", "In [5], line 2"),
    ("Which line takes the GPU?", "cuda_sync_time-lines", "2.70 ms loss.backward()"),
    ("Who holds my memory?", "gpu_mem-balance", "optimizer holds 1.94 GiB"),
    ("Which line leaks?", "gpu_mem-cell-lines", "line 3 left 840 MiB"),
    ("How do I get it back?", "gpu_mem-why-leaked", "1. %gpu_mem free"),
    ("Why can others not have it?", "gpu_mem-map", "model.weight and 3 other blocks"),
    ("Will workers help?", "pin_loader-diagnosed", "0 and 8 workers load no faster"),
    ("Is pinning worth it?", "pin_loader-diagnosed", "pin_memory=True 1.77x"),
    ("What do I type next?", "pin_loader-diagnosed", "-> %pin_loader train_dl"),
    ("Does it copy?", "tensor_info-transposed", ".contiguous() copies 96 B"),
    ("Why does view fail?", "tensor_info-view-fails", "would need stride 24 and has 1"),
    ("What is odd in my model?", "tensor_info-model-odd", "1 on another device"),
    (
        "Is there a NaN, and where?",
        "tensor_info-parameter-with-values",
        "the first at [1, 0]",
    ),
    ("Is there a race?", "simulator-races", "3 data races"),
    ("Was my GPU busy?", "gpu_open-rank-loader", "the GPU was busy 46.0 % of it"),
    ("Why was it not?", "gpu_open-rank-loader", "the host was in the DataLoader"),
    ("What do I try?", "gpu_open-rank-tiny-kernels", "`torch.compile` or CUDA graphs"),
    ("Which rank is slow?", "gpu_open-ranks-128", "rank 77 took 1.43x the median"),
    ("What does it cost?", "gpu_open-ranks-128", "others waited 118 ms for it"),
    ("Where is it slow?", "gpu_open-ranks-straggler", "its own work, in backward"),
    ("How much slower is it?", "gpu_open-runs-slower", "1.24x slower (318 -> 394 ms)"),
    ("Which kernel did it?", "gpu_open-runs-slower", "took 60.0 ms more (180 runs)"),
    ("Does it run more often?", "gpu_open-runs-slower", "1,440 to 2,160"),
    ("What filled it?", "gpu_open-snapshot-oom", "61.0 % of what was held is made in"),
    ("What leaks?", "gpu_open-snapshot-grown", "train.py, line 44 holds 1.15 GiB more"),
    (
        "What do I set?",
        "gpu_open-snapshot-replay",
        "expandable_segments:True would have",
    ),
    ("Is each on its own GPU?", "gpu_ranks-seats", "each on a GPU of its own"),
    ("Who shares a GPU?", "gpu_ranks-seats-shared", "ranks 1 and 3 share one GPU"),
    ("How do I part them?", "gpu_ranks-seats-shared", "then `%gpu_ranks select`"),
    ("Which rank is slow?", "gpu_ranks-times-straggler", "rank 3 (node1) took 1.57x"),
    ("Who pays for it?", "gpu_ranks-times-straggler", "the others waited 117 ms"),
    ("Why is it slow?", "gpu_ranks-times-flags", "held the clock of the GPU down"),
    ("Who is missing?", "gpu_ranks-where-hang", "rank 2 has not called it"),
    ("Where is it?", "gpu_ranks-where-hang", "line 3, time.sleep(12)"),
    ("What did I call wrong?", "gpu_ranks-where-mismatch", "rank 2 calls broadcast"),
    ("Who runs out first?", "gpu_ranks-memory-odd", "rank 5 (node2) has 71.0 GiB"),
    ("Who failed?", "gpu_ranks-times-raised", "rank 2 raised ValueError: x"),
    ("How do I go on?", "gpu_ranks-times-died", "`%gpu_ranks group` begins it anew"),
)


@pytest.mark.parametrize(("question", "view", "answer"), QUESTIONS)
def test_a_strangers_question_is_answered_in_sight(question, view, answer):
    """Nobody has to unfold anything for what most people come for."""
    text = re.sub(r"\s+", " ", drawn()[view].text(80))

    assert answer in text, question
