"""Whether a library is loaded, and how seldom that needs a look at the disk."""

from tests.devices.probing import NOTHING_LOADED, PREPARE
from tests.fakes.run import run_python


def test_threads_that_load_libraries_never_wait_for_one_that_asks():
    """The loader's lock and Python's are never taken in two orders."""
    run = run_python(
        PREPARE
        + """
    import _ctypes, threading, time
    sys.setswitchinterval(1e-6)
    end = time.monotonic() + 0.5

    def load():
        while time.monotonic() < end:
            _ctypes.dlclose(_ctypes.dlopen("libnvidia-ml.so.1", 2))

    def ask():
        kept = StartProbe()
        while time.monotonic() < end:
            kept.started()

    threads = [threading.Thread(target=each) for each in (load, ask, ask)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    show(True)
    """,
        **NOTHING_LOADED,
    )

    assert run.json() == [True]
