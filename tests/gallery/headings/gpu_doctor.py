"""What each sample of `%gpu_doctor` shows."""

from __future__ import annotations

HEADINGS = {
    "laptop": "A laptop without a GPU",
    "eight-gpus": "A server with eight GPUs, ready",
    "mixed-and-out-of-reach": "GPUs of two models, one of them out of reach",
    "torch-without-cuda": "A torch that was built without CUDA",
    "everything-wrong": "Everything that can be wrong at once",
    "cell-that-started-cuda": "A cell that started CUDA",
    "device-that-has-failed": "A kernel has failed: CUDA answers nothing else any more",
    "simulated": "A simulated GPU",
    "words": "All words of the reports",
    "word": "What one word means",
}
