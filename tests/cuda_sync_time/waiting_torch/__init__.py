"""A torch with CUDA, as far as the watch for waits asks for it.

It has a folder of its own, since a watch takes what lies in torch's for torch's own.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

DISABLED, WARN, ERROR = 0, 1, 2
SYNC = (
    "called a synchronizing CUDA operation (Triggered internally at "
    "/pytorch/c10/cuda/CUDAFunctions.cpp:150.)"
)
PROTOTYPE = (
    "Synchronization debug mode is a prototype feature and does not yet detect all "
    "synchronizing operations (Triggered internally)"
)


class Tensor:
    """What waits on CUDA, waits here as far as the mode can tell."""

    def __init__(self, torch):
        self._torch = torch

    def item(self):
        """Wait, as torch does."""
        self._torch.warn_on_sync()
        return 1.0


def warn_from_cpp(text):
    """A warning as torch's C++ raises it: it counts as the caller's own line."""
    warnings.warn(text, UserWarning, stacklevel=3)


class Torch:
    """The module itself; CUDA is not started."""

    __path__ = (str(Path(__file__).parent),)

    def __init__(self):
        torch = self
        self.mode = DISABLED
        self.said_prototype = False

        class Stream:
            def synchronize(self):
                torch.warn_on_sync()  # as c10's stream_synchronize does

        class Event:
            def synchronize(self):
                """An event's wait warns nobody."""

        self._C = SimpleNamespace(
            _cuda_get_sync_debug_mode=lambda: self.mode,
            _cuda_set_sync_debug_mode=self.set_mode,
            _cuda_synchronize=lambda: None,
            _accelerator_synchronizeDevice=lambda _: None,
        )
        self.cuda = SimpleNamespace(
            is_initialized=lambda: False,
            set_sync_debug_mode=self.must_not_start,
            synchronize=self.synchronize,
            Stream=Stream,
            Event=Event,
        )

    def set_mode(self, mode):
        """What the private word does: it starts nothing, and warns once."""
        if not self.said_prototype:
            self.said_prototype = True
            warn_from_cpp(PROTOTYPE)
        self.mode = mode

    def synchronize(self):
        """The public word, which ends in the private one."""
        self._C._cuda_synchronize()

    def must_not_start(self, _):
        """What the public word would do."""
        raise AssertionError("CUDA was started")

    def warn_on_sync(self):
        """What each operation does that waits."""
        if self.mode == WARN:
            warn_from_cpp(SYNC)
        elif self.mode == ERROR:
            raise RuntimeError("called a synchronizing CUDA operation")
