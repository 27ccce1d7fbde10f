"""Whether a library is loaded, and how seldom that needs a look at the disk."""

from tests.devices.probing import NOTHING_LOADED, PREPARE
from tests.fakes.run import run_python

COUNT_LOOKS = """
    looks, look = [], ctypes.CDLL

    def noted(*arguments, **options):
        looks.append(arguments)
        return look(*arguments, **options)

    ctypes.CDLL = noted

    def looks_for(questions):
        del looks[:]
        for _ in range(questions):
            kept.started()
        return len(looks)

    kept = Probe()
"""


def test_the_disk_is_searched_again_only_after_something_was_loaded():
    """While nothing has been loaded since the last vain look, nobody looks."""
    run = run_python(
        PREPARE
        + COUNT_LOOKS
        + """
    at_first = looks_for(9)
    look("libnvidia-ml.so.1")
    show(at_first, looks_for(9), looks_for(9))
    """,
        **NOTHING_LOADED,
    )

    assert run.json() == [2, 1, 0]


def test_the_loader_counts_up():
    """Each library that comes is counted, and none that goes."""
    run = run_python(
        PREPARE
        + """
    import _ctypes
    from gpumagic.devices.cuda_start import load_counter
    count = load_counter()
    before = count()
    handle = _ctypes.dlopen("libnvidia-ml.so.1", 2)
    loaded = count()
    _ctypes.dlclose(handle)
    show(before > 0, loaded - before, count() - loaded)
    """,
        **NOTHING_LOADED,
    )

    assert run.json() == [True, 1, 0]


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
        kept = Probe()
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
