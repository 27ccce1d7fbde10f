"""What each sample of `%gpu_doctor` shows."""

from __future__ import annotations

HEADINGS = {
    "laptop": "A laptop without a GPU",
    "one-gpu": "A machine with one GPU, ready",
    "eight-gpus": "A server with eight GPUs, ready",
    "mixed-and-out-of-reach": "GPUs of two models, one of them out of reach",
    "torch-without-cuda": "A torch that was built without CUDA",
    "driver-too-old": "A driver that is too old for this torch",
    "everything-wrong": "Everything that can be wrong at once",
    "cell-that-changed-nothing": "A cell that changed nothing",
    "cell-that-started-cuda": "A cell that started CUDA",
    "device-that-has-failed": "A kernel has failed: CUDA answers nothing else any more",
    "simulated": "A simulated GPU",
    "words": "All words of the reports",
    "words-of-a-group": "The words about tensors",
    "word": "What one word means",
}
