"""Makes this process one of the machine's: Python runs this file when it begins.

torch finds the libraries that come with it by a path in itself, and takes those that
are loaded already: ours are, from its import on. Not sooner, as a process that has not
imported torch has nothing of CUDA on a real machine. From then on `time.perf_counter`
tells the virtual time of the host, in which values are worked out at once; what waits
for a moment, as locks, sleeps and alarms do, stays with the real clock.
"""

import os
import sys
import time

_now_ns = time.perf_counter_ns  # the virtual clock goes on from it


def perf_counter_ns():
    """The host's time in nanoseconds, for measuring."""
    return _now_ns()


def perf_counter():
    """The host's time in seconds, for measuring."""
    return _now_ns() / 1e9


class _BeforeTorch:
    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        if name == "torch":
            sys.meta_path.remove(self)
            _load()


def _load():
    global _now_ns  # noqa: PLW0603 -- whoever has imported our functions has it
    import ctypes
    from pathlib import Path

    folder = Path(os.environ["GPUMAGIC_FAKE_LIBRARIES"])
    for each in sorted(folder.glob("*.so.*[2-9]")):  # libnccl.so.2, no driver's .so.1
        ctypes.CDLL(str(each), mode=ctypes.RTLD_GLOBAL)
    # The interpreter's lock is kept: a thread that came in between would take time.
    clock = ctypes.PyDLL("libcuda.so.1").machine_now_ns
    clock.restype = ctypes.c_int64
    _now_ns = clock
    from tests.fakes.cuda import triton_values

    triton_values.install(folder)


for each in (perf_counter, perf_counter_ns):  # a library's: who notes lines skips them
    each.__code__ = each.__code__.replace(co_filename=os.__file__)
    setattr(time, each.__name__, each)
sys.meta_path.insert(0, _BeforeTorch())
