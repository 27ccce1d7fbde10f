"""How a snippet on a fake machine starts CUDA and shows what is found."""

PREPARE = """
    import ctypes, json, os, sys
    from gpumagic.devices.nvidia import StartProbe, mapped_library
    from gpumagic.devices.nvidia import NvidiaDriver

    def initialise():
        return ctypes.CDLL("libcuda.so.1").cuInit(0)

    def show(*found):
        print(json.dumps([each if isinstance(each, (str, int, bool, type(None), list))
                          else each.to_dict() for each in found]), flush=True)
"""
NOTHING_LOADED = {"load": (), "install": ("nvml", "libcuda")}
