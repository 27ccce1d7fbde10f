"""Counts the floating point operations of a run, in a further run of its own.

torch counts what it is told to do, operator by operator, before it is done. So the
figure is exact for matrix products, convolutions and attention, and everything else
counts as nothing: element-wise operations, sums, normalisations, kernels that torch
does not know, and what is replayed from a captured graph. A causal mask is not counted
as half of the work.

The run has all its effects once more.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.tally import Tally
from gpumagic.devices import torch_private
from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HOOKS_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"


@dataclass(frozen=True)
class Counted(Record):
    """The floating point operations of one run.

    Attributes:
        flops: All that could be counted; None if that would not be the truth.

        by_operation: The share of each operator of torch, largest first.

        dtype: In which type most of them are computed: "bfloat16", "float32", or
            "tf32" where torch may round to it. None if none were counted.

        devices: On how many devices they are computed.

        problem: Why they could not be counted.

        hint: What to do about it.
    """

    flops: int | None
    by_operation: tuple[tuple[str, int], ...] = ()
    dtype: str | None = None
    devices: int = 1
    problem: str | None = None
    hint: str | None = None


def count_flops(run: Callable[[], object], torch: Any) -> Counted:
    """Run the code once more, and count.

    Code of torch.compile runs as if it was not compiled: it then has the same
    operations, can be counted, and keeps what has been compiled for later.

    Args:
        run: Runs the code once.

        torch: The torch module.

    Returns:
        The count, or why there is none. An error of the code is a problem as well: it
        costs the count alone.
    """
    refused = _refusal(torch)
    if refused is not None:
        return refused
    tally = Tally(torch)
    try:
        with _uncompiled(torch), tally.counting():
            run()
    except KeyboardInterrupt:
        return Counted(None, problem="the run that counts was interrupted")
    except Exception as error:  # noqa: BLE001 -- the user's own, and the time stands
        return _failed(error)
    return _counted(tally)


def _counted(tally: Tally) -> Counted:
    if tally.in_one_piece:
        names = ", ".join(sorted(tally.in_one_piece))
        return Counted(
            None,
            problem=f"a recurrent network ran as one call ({names}), which torch does "
            "not count",
            hint="count a cell without it, or work its operations out by hand",
        )
    if not tally.flops.total():
        return Counted(
            None,
            problem="no matrix product, convolution or attention ran, and nothing else "
            "is counted",
            hint="code that mostly moves bytes is judged by them: --bytes 512MiB",
        )
    return Counted(
        tally.flops.total(),
        tuple(tally.flops.most_common()),
        tally.types.most_common(1)[0][0],
        max(len(tally.devices), 1),
    )


def _refusal(torch: Any) -> Counted | None:
    """Up to torch 2.5 counting would keep compiled code from ever being used again."""
    if hasattr(torch.compiler, "set_stance"):
        return None
    if torch_private.compilations(torch) == 0:
        return None
    return Counted(
        None,
        problem="torch.compile has been used in this process, and in this version of "
        "torch counting would slow compiled code down for good",
        hint="count before anything is compiled, or update torch to 2.6 or newer",
    )


@contextlib.contextmanager
def _uncompiled(torch: Any) -> Iterator[None]:
    set_stance = getattr(torch.compiler, "set_stance", None)
    with contextlib.ExitStack() as stack:
        if set_stance is not None:
            stack.enter_context(set_stance("force_eager"))
        stack.enter_context(warnings.catch_warnings())
        # The hooks are those of the counter.
        warnings.filterwarnings("ignore", _HOOKS_WARNING)
        yield


def _failed(error: Exception) -> Counted:
    said = (str(error).splitlines() or [""])[0]
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return Counted(
        None,
        problem=f"counting runs the code once more, and there it raised {what}",
        hint="make the code repeatable: what it changes must not be in its own way",
    )
