"""What the terms of the reports mean: each in one sentence, in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Group = dict[str, str]

WORDS: Final[Mapping[str, Group]] = {
    "time": {
        "95 % interval": "Where the true figure lies in 95 of 100 such measurements.",
        "another stream": "The GPU was idle although work was launched in time: what "
        "ran last ran on another stream.",
        "autograd": "torch's record of operations, from which backward() computes "
        "gradients.",
        "backlog": "Work of earlier cells that is still in the queue; the clock "
        "begins when it is done.",
        "bound": "Held up by one thing, as by memory: only more of that makes it "
        "faster.",
        "busy": "The share of the time in which the GPU ran at least one kernel or "
        "copy.",
        "cold": "With the caches of the GPU emptied before each run.",
        "collective": "What all ranks of a group do together, such as an all-reduce: "
        "it ends when the last has come.",
        "communication": "What GPUs send to each other, as in an all-reduce.",
        "copy": "Moves bytes between host and device, or between two places of one "
        "device.",
        "engine": "A process of a cluster of ipyparallel that runs cells for a "
        "notebook.",
        "event": "A mark in a stream, by which others wait for it or time it.",
        "first use": "The first call loads kernels and chooses algorithms, so it "
        "takes longer than the next ones.",
        "flight recorder": "torch's own list of the latest collectives of a process.",
        "floor": "The time that an empty cell is measured as; anything shorter cannot "
        "be told from it.",
        "FLOP": "One addition or multiplication of floating-point numbers.",
        "GPU clock": "The frequency of the GPU, which falls when it is hot or short "
        "of power.",
        "GPU time": "Time in which the GPU works on what was asked.",
        "hidden": "Communication while a kernel computes, so that it costs no time.",
        "host": "Python and the processor, which ask the GPU for work.",
        "host code": "Time in which the processor runs Python or C++, and neither "
        "launches nor waits.",
        "host late": "The next work was launched only after the GPU had run out of "
        "work.",
        "host waits": "Time in which the processor does nothing until the GPU is done.",
        "idle": "Nothing runs: the queue is empty, or the next work waits for "
        "something.",
        "kernel": "One program that runs on the GPU, started by one launch.",
        "latency": "The time of one call, where the host waits after each.",
        "launch": "Asks the GPU to run a kernel; it returns before the kernel runs.",
        "limited by": "What a kernel spends its time on: arithmetic, bandwidth, its "
        "launch, or too few pieces.",
        "line time": "Time at a line of your code, with all that it has called.",
        "median": "Half of the runs took less, half took more.",
        "middle half": "The runs without the fastest and the slowest quarter.",
        "moves": "Time in which a rank did nothing but send to others and receive.",
        "others waited": "How long other ranks waited for this one, as it came last to "
        "collectives.",
        "outlier": "A run far from the others; it is counted and kept.",
        "own work": "The time of a rank without its waits for others and without what "
        "it only moved.",
        "perhaps busy": "It is not known whether the GPU was busy then, for nothing "
        "recorded it.",
        "profile": "A record of what ran when on the host and on the GPU.",
        "race": "Two accesses to the same memory, one of them a write, in no certain "
        "order.",
        "rank": "One process of a job that runs as many, mostly with a GPU of its own.",
        "sample": "One timed stretch of one call or of many.",
        "side stream": "Any stream but the one that the cell began on.",
        "simulated clock": "A model says how long the work takes; Python's own time is "
        "not on it.",
        "spread": "How far apart the middle half of the runs lies.",
        "straggler": "A rank whose own work takes longer, so that the others wait.",
        "stream": "A queue of the GPU: its work runs in order, beside that of other "
        "streams.",
        "synchronise": "Let the host wait until the GPU has done all that was asked "
        "for.",
        "tail": "Time in which only side streams still run.",
        "TF32": "Products of float32 with fewer digits, for speed.",
        "throughput": "The time per call where many are launched and waited for once.",
        "trace": "A profile that is saved as a file, for Perfetto or chrome://tracing.",
        "waits for others": "Time in which a rank did nothing but wait until others "
        "came to a collective.",
        "warm-up": "Runs before the first one that counts.",
    },
    "memory": {
        "activation": "A result of the forward pass that is kept for the backward "
        "pass.",
        "active": "Memory in tensors, or given back and still used by another stream.",
        "allocated": "Memory that lies in tensors of this process.",
        "allocator": "The part of torch that hands out GPU memory.",
        "alone": "What comes back if only this name goes.",
        "awaited": "Given back, and still used by another stream.",
        "before the recording": "In use when the recording began; which line took it "
        "is not known.",
        "block": "A piece of a segment: one tensor, or a hole.",
        "cached": "Free memory that torch keeps for its next tensors.",
        "change": "How much more is held than before the cell.",
        "churn": "Memory that was taken and given back within the cell.",
        "context": "What CUDA itself takes on each GPU that a process uses.",
        "cycle": "Objects that refer to each other, freed only when Python collects "
        "garbage.",
        "evenness": "Near 100 % the free memory lies in many holes of like size, at "
        "0 % in one.",
        "exact": "Counted, so that no other figure is possible.",
        "expandable segments": "Segments that grow, so that fewer holes remain "
        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).",
        "fragmentation": "Free memory lies in pieces, each smaller than what is asked "
        "for.",
        "free": "Memory of the GPU that no process has.",
        "graph": "What autograd keeps of a computation until backward() has run.",
        "held back": "Free memory that cannot go to the driver, for tensors lie in its "
        "segments.",
        "holds": "All memory that is reached from a name.",
        "hole": "A free piece between two tensors of a segment.",
        "in use": "Memory that lies in tensors.",
        "large pool": "Where torch keeps tensors of more than 1 MiB.",
        "leak": "Memory that is held although nothing will use it again.",
        "left": "What a line took and nobody has given back.",
        "memory event": "What a snapshot has recorded: an allocation, its being given "
        "back, or an error.",
        "memory step": "A tensor takes a piece of memory, or gives one back.",
        "no name found": "Memory in tensors that no name of the notebook leads to.",
        "others": "What other processes hold on the same GPU.",
        "out of memory": "The error where no piece of free memory is large enough.",
        "outside torch": "Memory of this process that torch did not hand out: the "
        "context, kernels, libraries.",
        "peak": "The most that was in use at one time.",
        "replay": "Recorded requests served again by the rules of torch's allocator, "
        "under another setting.",
        "reserved": "What torch has taken from the driver: in use and cached together.",
        "rounding": "What a block has more than its tensor needs, since sizes are "
        "rounded up to 512 bytes.",
        "segment": "A stretch of memory that torch has taken from the driver in one "
        "piece.",
        "small pool": "Where torch keeps tensors of 1 MiB and less.",
        "snapshot": "What torch's allocator held at one moment, and what led to it, "
        "saved as a file.",
        "workspace": "Memory that cuBLAS keeps for its products.",
    },
    "tensors": {
        "alias": "Another name or tensor for the same memory.",
        "alignment": "The largest power of two that divides the address.",
        "broadcast": "A dim of stride 0: one element stands for all.",
        "channels_last": "Images whose channels lie beside each other in memory.",
        "contiguous": "The elements lie in memory in the order of their indices, with "
        "no gap.",
        "copy of a tensor": "A tensor with memory of its own and the same values.",
        "dense": "The elements fill their memory without gaps, in some order.",
        "dim": "One axis of a tensor, counted from 0.",
        "dtype": "The type of the elements, as in float32.",
        "element": "One number of a tensor.",
        "frozen": "A parameter that gets no gradient, so that training leaves it as it "
        "is.",
        "gradient": "What backward() computes for a parameter.",
        "logical bytes": "The bytes of all elements, counted by their indices.",
        "memory order": "The order in which the elements lie in memory.",
        "not registered": "A tensor of a module that .to() and state_dict() do not "
        "know.",
        "offset": "The place in the storage where the tensor begins.",
        "overlap": "Two indices of one tensor lead to the same element.",
        "parameter": "A tensor of a model that training changes.",
        "place": "Where an element lies in the storage, counted in elements from 0.",
        "sector": "The 32 bytes that a GPU reads at a time.",
        "storage": "The memory that a tensor and its views share.",
        "stride": "How many elements lie between neighbours along a dim.",
        "tied": "Two parameters of a model share one storage.",
        "touched bytes": "The bytes of the elements that the tensor reaches, each "
        "counted once.",
        "view": "A tensor that shares the storage of another one.",
        "warp": "32 threads of a GPU, which read memory together.",
    },
    "loaders": {
        "at most": "What a remedy gives if nothing else becomes slower; it cannot give "
        "more.",
        "batch": "What the loader hands out at a time.",
        "bottleneck": "The part of a step that all others wait for.",
        "collate": "Puts single samples together into a batch.",
        "copied ahead": "Copied to the device while the batch before is computed.",
        "DataLoader": "torch's class that reads samples, puts batches together and "
        "hands them out.",
        "depth": "How many batches are copied ahead.",
        "epoch": "One pass over all batches.",
        "host held": "The time for which a copy keeps the host.",
        "loading": "Reading samples and putting them together, before any copy.",
        "non_blocking": "Lets the host go on while a copy from pinned memory runs.",
        "not hidden": "The part of a copy, or of communication, during which nothing "
        "is computed.",
        "pageable": "Ordinary memory of the host, whose copies make the host wait.",
        "pinned": "Memory of the host that stays in place, so that the GPU can copy "
        "it by itself.",
        "prefetching": "Copies the next batch while this one is computed.",
        "sampler": "Decides which samples come when.",
        "shared memory": "Memory of the host in which workers hand batches over "
        "(/dev/shm).",
        "stand-in step": "Kernels that take as long as a step could, where your own "
        "step is not given.",
        "step": "What the loop does with one batch.",
        "worker": "A process that loads batches for the loader.",
    },
    "machines": {
        "accelerator": "A device that computes for the processor: a GPU, an NPU.",
        "capability": "The generation of an NVIDIA GPU, as in 9.0 for an H100.",
        "compute mode": "Whether a GPU takes several processes, one, or none.",
        "CUDA": "NVIDIA's way to run programs on a GPU.",
        "cuda:0": "The first GPU that this process sees, not always GPU 0 of the "
        "machine.",
        "CUDA_VISIBLE_DEVICES": "The variable that says which GPUs CUDA shows; it is "
        "read once, when CUDA starts.",
        "driver": "The system's program that runs the GPU; it sets the newest CUDA "
        "that works.",
        "GPU 0": "The first GPU as nvidia-smi counts, whatever a process may see.",
        "guard": "A variable that lets torch.cuda.is_available() answer without "
        "starting CUDA.",
        "local rank": "The place of a process among those on its host, counted from 0.",
        "MIG slice": "A part of a GPU that is used like a GPU of its own.",
        "NVML": "NVIDIA's library that tells of GPUs without starting CUDA.",
        "PCI address": "The slot that a GPU sits in, as in 0000:18:00.0.",
        "predicted": "Worked out from the variables, since CUDA has not started.",
        "simulated": "Computed by a model of a GPU; no such device is here.",
        "start of CUDA": "The first call that uses a GPU; from then on the choice of "
        "GPUs is fixed.",
        "UUID": "The name of one GPU that no other GPU has.",
    },
}


def find(asked: str) -> tuple[tuple[str, str, str], ...]:
    """What is known of a term: group, term and sentence of each that fits."""
    wanted = _plain(asked)
    if asked in WORDS:
        return tuple(entry for entry in _entries() if entry[0] == asked)
    known = [entry for entry in _entries() if wanted in _plain(entry[1])]
    exact = [entry for entry in known if _plain(entry[1]) == wanted]
    return tuple(exact or known)


def nearest(asked: str) -> tuple[str, ...]:
    """Terms and groups that are written nearly like what was asked."""
    import difflib

    known = {_plain(each): each for each in (*(each[1] for each in _entries()), *WORDS)}
    return tuple(
        known[each]
        for each in difflib.get_close_matches(_plain(asked), known, cutoff=0.7)
    )


def _entries() -> Iterator[tuple[str, str, str]]:
    for group, words in WORDS.items():
        for term, sentence in words.items():
            yield group, term, sentence


def _plain(term: str) -> str:
    """Without what may differ where the same is meant."""
    plain = term.casefold().replace("synchroniz", "synchronis")
    return plain.removesuffix("s") if len(plain) > len("gas") else plain
