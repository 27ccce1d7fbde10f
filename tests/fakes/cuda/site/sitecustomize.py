"""Loads the libraries that stand in for CUDA's, when torch is first imported.

torch finds its own by a path in itself, and takes those that are loaded already. Not
sooner: a process that has not imported torch has nothing of CUDA on a real machine.
"""

import sys


class _BeforeTorch:
    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        if name == "torch":
            sys.meta_path.remove(self)
            _load()


def _load():
    import ctypes
    import os
    from pathlib import Path

    libraries = Path(os.environ["GPUMAGIC_FAKE_LIBRARIES"])
    for each in sorted(libraries.glob("*.so.*[2-9]")):  # not the driver's, .so.1
        ctypes.CDLL(str(each), mode=ctypes.RTLD_GLOBAL)


sys.meta_path.insert(0, _BeforeTorch())
