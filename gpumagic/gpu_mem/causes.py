"""Why memory has run out, as sentences, and what to type next. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_mem.letting_go import Held
from gpumagic.gpu_mem.pinning import names_to_delete
from gpumagic.gpu_mem.records.leaks import LeakKind
from gpumagic.gpu_mem.records.requests import Cause
from gpumagic.gpu_mem.room import room_at
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.gpu_mem.records.devices import DeviceMemory
    from gpumagic.gpu_mem.records.requests import Answer, OomFacts, Pinning
    from gpumagic.gpu_mem.records.setting import Setting

_BATCH = "ask for less at once: a smaller batch, a smaller dtype, or parts in a loop"
_LESS_IN_THE_RUN = (
    _BATCH,
    "use torch.no_grad() where no backward pass follows",
    "use torch.utils.checkpoint where one does",
)
_STEPS = {
    Cause.NEVER_FITS: (_BATCH, "spread it over several GPUs"),
    Cause.CAPPED: (
        "torch.{kind}.set_per_process_memory_fraction(1.0) lifts this process's limit",
    ),
    Cause.PRIVATE_POOL: (
        "del the graphs that are not needed any more, then torch.{kind}.empty_cache()",
        'use torch.compile without mode="reduce-overhead", which records graphs',
    ),
    Cause.FRAGMENTED: ("%gpu_mem map shows what lies between the free pieces", _BATCH),
    Cause.OTHERS: (
        "!nvidia-smi shows whose the other processes are",
        "%gpu_select free in a fresh kernel takes the freest GPU",
    ),
    Cause.UNKNOWN: ("%gpu_mem map shows how the memory is cut up",),
}
_TO_LEARN_MORE = (
    "let it out once, without try and except: its words say how much was asked for",
    "%gpu_mem fit 2GiB asks whether so much would fit now",
)
_OTHERS_OF_THE_MODEL = {Cause.OTHERS: ("%gpu_select free takes the freest GPU",)}
_EXPANDABLE = (
    "%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in a fresh kernel, before "
    "torch is imported"
)
_EXPANDABLE_IN_THE_MODEL = (
    'gpumagic.simulate("h100", allocator="expandable_segments:True") in place of the '
    "simulated GPU that is on"
)


def causes_of(
    oom: OomFacts | None,
    answer: Answer | None = None,
    memory: DeviceMemory | None = None,
    *,
    leaks_bytes: int | None = None,
    private_pool_bytes: int | None = None,
) -> tuple[Cause, ...]:
    """All that a request which found no place comes down to, the most telling first.

    Args:
        oom: What the error said; None for a request that nobody has made yet.

        answer: Whether the request fits now. One that does, or may, has no causes
            without an error.

        memory: The device now. Where the error says something else, that counts.

        leaks_bytes: What is probably not wanted any more on this device, and what the
            failing run had not needed either.

        private_pool_bytes: What is free there in the pools of graphs and of the user.
    """
    if oom is None and (answer is None or answer.place != "nowhere"):
        is_open = answer is not None and answer.place is None
        return (Cause.UNKNOWN,) if is_open else ()
    room = room_at(oom, answer, memory, private_pool_bytes or 0)
    found = tuple(dict.fromkeys(room.causes(leaks_bytes or 0)))
    return found or (Cause.UNKNOWN,)


def next_steps(  # noqa: PLR0913 -- each is something that a step may rest on
    causes: Sequence[Cause],
    *,
    setting: Setting | None = None,
    expandable: bool | None = None,
    pinning: Sequence[Pinning] = (),
    others: Sequence[tuple[int, int]] = (),
    held: Held | None = None,
    in_pieces_bytes: int | None = None,
) -> tuple[str, ...]:
    """What to do, what gives back the most first.

    Args:
        causes: From `causes_of`.

        setting: Where it is; None is CUDA.

        expandable: Whether segments are expandable; None where they cannot be.

        pinning: Blocks in between, from `pinning.pinning_of`.

        others: Other processes and their bytes, from `others_in`.

        held: What may be let go of.

        in_pieces_bytes: What is free in pieces; None is unknown.
    """
    held = held or Held()
    kind = "cuda" if setting is None else setting.kind
    simulated = setting is not None and setting.label != ""
    steps: list[str] = []
    for cause in causes:
        if cause is Cause.FRAGMENTED:
            if held.own_bytes > (in_pieces_bytes or 0):
                steps += held.ways_to_need_less()
            steps += _unpinning(pinning)
            way = _EXPANDABLE_IN_THE_MODEL if simulated else _EXPANDABLE
            steps += [way] if expandable is False else []
        if cause is Cause.OTHERS:
            steps += [
                f"process {pid} holds {bytes_text(nbytes)}: ask whose it is"
                for pid, nbytes in sorted(others, key=lambda each: -each[1])
            ]
        if cause is Cause.LEAKED:
            steps += held.ways_to_let_go()
        if cause is Cause.TOO_MUCH_LIVE:
            steps += _with_less_alive(held)
        said = _STEPS.get(cause, ())
        said = (_OTHERS_OF_THE_MODEL if simulated else {}).get(cause, said)
        steps += [each.format(kind=kind) for each in said]
    if Cause.NEVER_FITS not in causes:
        steps += held.ways_to_need_less()
    if Cause.LEAKED in causes and held.own_bytes:
        steps.append(_BATCH)
    return tuple(dict.fromkeys((*steps, *held.of_the_error_itself())))


def steps_without_words(held: Held) -> tuple[str, ...]:
    """What to type where an error was caught, and nobody knows what was asked for.

    Args:
        held: What may be let go of.
    """
    leaks = any(leak.kind is not LeakKind.GRAPH for leak in held.leaks)
    return (
        *(held.ways_to_let_go() if leaks else ()),
        *_TO_LEARN_MORE,
        *held.ways_to_need_less(),
        held.names_to_delete(),
        *held.ways_to_cut_graphs(),
        *held.of_the_error_itself(),
    )


def _with_less_alive(held: Held) -> tuple[str, ...]:
    """Where the failing run had made much of it, its batch comes before the names."""
    graphs, names = held.ways_to_cut_graphs(), held.names_to_delete()
    if held.is_much_its_own:
        less = *held.ways_to_need_less(), *_LESS_IN_THE_RUN
        return *less, *held.of_the_error_itself(), names, *graphs
    return names, *graphs, *_LESS_IN_THE_RUN


def _unpinning(pinning: Sequence[Pinning]) -> Iterator[str]:
    names = names_to_delete(pinning)
    if names:
        keep = "it keeps" if len(names) == 1 else "they keep"
        yield f"del {', '.join(names)}: {keep} free memory in pieces"
