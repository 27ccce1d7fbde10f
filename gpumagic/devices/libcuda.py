"""Whether `cuInit` has run in this process, found out without running it.

The driver reads `CUDA_VISIBLE_DEVICES` once, inside a successful `cuInit`, and no
flag of any library tells reliably whether that has happened. The driver itself
does: `cuDeviceGetCount` needs no initialisation to answer, and changes nothing.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from gpumagic.devices.cuda_start import STUB_LIBRARY, SUCCESS, StartProbe
from gpumagic.devices.protocols import CudaState, Initialisation

_NOT_INITIALIZED = 3


@dataclass(frozen=True)
class Evidence:
    """What tells the three meanings of "not initialised" apart."""

    # the process in which CUDA was seen initialised
    initialised_in_pid: int | None = None
    # whether torch knows this process as the forked child of one that had initialised
    # CUDA
    in_bad_fork: bool = False
    failed_attempt: bool = False  # whether something called `cuInit` here in vain


NO_EVIDENCE = Evidence()


class Probe(StartProbe):
    """Asks the driver library how far CUDA has come; keep one to ask often."""

    __slots__ = ()

    def state(
        self, evidence: Evidence = NO_EVIDENCE, *, library: str | None = None
    ) -> CudaState:
        """How far CUDA has come in this process, as `state_of` says it."""
        return state_of(self, evidence, library=library)


def state_of(
    start: StartProbe,
    evidence: Evidence = NO_EVIDENCE,
    *,
    library: str | None = None,
) -> CudaState:
    """How far CUDA has come in this process.

    Any answer but success and "not initialised" counts as a failed attempt, for
    only `cuInit` brings the driver to give it.
    """
    try:
        answer = start.device_count()
    except (AttributeError, NotImplementedError):
        return CudaState(Initialisation.UNKNOWN, library=library)
    if answer is None:
        return CudaState(Initialisation.NOT_LOADED)
    code, count = answer
    return CudaState(
        _state(code, evidence),
        code=code,
        device_count=count if code == SUCCESS else None,
        library=library,
    )


def probe(evidence: Evidence = NO_EVIDENCE) -> CudaState:
    """How far CUDA has come in this process, for those who ask once."""
    return Probe().state(evidence)


def driver_initialised() -> bool:
    """Whether somebody in this process has already called cuInit."""
    return probe().state is Initialisation.INITIALISED


def gather_evidence(
    initialised_in_pid: int | None = None, *, failed_attempt: bool = False
) -> Evidence:
    """The caller's evidence and torch's, if torch is imported; imports nothing."""
    torch_cuda = sys.modules.get("torch.cuda")
    in_bad_fork = getattr(torch_cuda, "_is_in_bad_fork", None)
    return Evidence(
        initialised_in_pid=initialised_in_pid,
        in_bad_fork=bool(in_bad_fork()) if callable(in_bad_fork) else False,
        failed_attempt=failed_attempt,
    )


def _state(code: int, evidence: Evidence) -> Initialisation:
    if code == SUCCESS:
        return Initialisation.INITIALISED
    if code == STUB_LIBRARY:
        return Initialisation.UNKNOWN
    if code != _NOT_INITIALIZED:
        return Initialisation.FAILED
    return _meaning_of_not_initialised(evidence)


def _meaning_of_not_initialised(evidence: Evidence) -> Initialisation:
    seen_in = evidence.initialised_in_pid
    if evidence.in_bad_fork or seen_in not in (None, os.getpid()):
        return Initialisation.FORKED_CHILD
    # CUDA does not become uninitialised again: seen here, it has broken since.
    if evidence.failed_attempt or seen_in is not None:
        return Initialisation.FAILED
    return Initialisation.UNTOUCHED
