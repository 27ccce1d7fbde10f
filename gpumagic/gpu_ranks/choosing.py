"""Shares the GPUs of each host out among its engines, or says why that cannot be. Pure.

What an engine may be given is what it was started with. A batch system that gives each
task one GPU has shared out already, and one that gives a job some of the GPUs of a host
has left the others to somebody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks.answers import DOCTOR
from gpumagic.report.units import count_text, listed

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


class Choice(NamedTuple):
    """A GPU that an engine may be given."""

    number: int  # as nvidia-smi counts those that it lists for this engine
    uuid: str | None


class Asker(NamedTuple):
    """An engine that is to have a GPU."""

    host: str  # what its host is called
    machine: Hashable  # what tells its host apart from others
    choices: tuple[Choice, ...]  # what it may be given, in the order of CUDA


def names_of(askers: Mapping[int, Asker]) -> dict[int, str]:
    """What each engine is given, as `gpu_select` takes it.

    Who may have one GPU alone keeps it, and all others take the first that is left.
    """
    without = [str(engine) for engine, asker in askers.items() if not asker.choices]
    if without:
        who = f"engine{'s' * (len(without) > 1)} {listed(without)}"
        sees = "sees" if len(without) == 1 else "see"
        raise GpuMagicError(f"nothing was changed: {who} {sees} no GPU", DOCTOR)
    taken: set[tuple[Hashable, Choice]] = set()
    found = {}
    for engine, asker in sorted(
        askers.items(), key=lambda each: len(each[1].choices) > 1
    ):
        free = [e for e in asker.choices if (asker.machine, e) not in taken]
        if not free:
            raise _none_left(askers, engine)
        taken.add((asker.machine, free[0]))
        number, uuid = free[0]
        # Slices of one GPU have one number.
        is_slice = [each.number for each in asker.choices].count(number) > 1
        found[engine] = str(uuid if is_slice and uuid else number)
    return found


def _none_left(askers: Mapping[int, Asker], engine: int) -> GpuMagicError:
    asker = askers[engine]
    here = [e for e, each in askers.items() if each.machine == asker.machine]
    gpus = len({choice for e in here for choice in askers[e].choices})
    first = [e for e in askers if e not in here or e in here[:gpus]]
    return GpuMagicError(
        f"nothing was changed: {asker.host} has {count_text(gpus, 'GPU')} for "
        f"{count_text(len(here), 'engine')}",
        "start as many engines as GPUs, let a batch system give each its own "
        "(srun --gpus-per-task=1), or `%gpu_ranks select --on "
        f"{','.join(map(str, first))}`",
    )
