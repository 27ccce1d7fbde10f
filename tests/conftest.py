"""What tests of several folders share."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fakes.cuda import is_on
from tests.fakes.no_driver import hide_driver

_FILE = pytest.StashKey()  # the one whose tests are running, and blocks when last asked
_MANY = 50_000  # blocks of memory, as of what draws an answer, or what Tab looks up

# The files that take longest. Those that mostly wait, for engines, clusters or a
# terminal, stand between those that compute.
_LONGEST = (
    "simulator/test_in_process.py",
    "notebooks/test_course.py",
    "gpu_mem/test_in_process.py",
    "tests/test_strangers.py",
    "pin_loader/test_in_process.py",
    "gpu_ranks/test_watch.py",
    "cuda_sync_time/test_in_process.py",
    "gpu_ranks/test_cluster.py",
    "frontends/test_terminal.py",
    "gallery/test_samples.py",
    "gpu_ranks/test_hosts.py",
    "notebook/test_cell_semantics.py",
    "frontends/test_rules.py",
    "notebook/test_live.py",
    "notebook/test_demo.py",
    "gpu_ranks/test_analysis.py",
    "gpu_select/test_restart.py",
)


def pytest_configure(config):
    """Make nothing depend on how busy the machine is, and nothing on luck.

    Hypothesis would call an example that is slow by chance a failure, and would try
    others in each run: one that fails for the first time would then stop a change that
    has nothing to do with it. `--hypothesis-profile=search` goes looking for new ones.

    And torch computes in one thread, here and in every process that a test starts:
    for tensors as small as those of tests a second thread is only somebody to wait
    for, and for long where as many tests run at once as there are processors. What is
    measured on a GPU is left as it is, with whatever is installed there.

    Shells that a test makes in this process have a history of their own. In the user's
    own, and with several processes, one would wait for another, and the file that
    IPython cannot write to in time it takes for a broken one and moves away.

    And the driver of a machine that has a GPU is there for tests of hardware alone.
    """
    asked = (config.option.markexpr, *config.args)
    on_hardware = is_on() or any("hardware" in each for each in asked)
    if not on_hardware:
        hide_driver(config)
    gc.disable()  # until all is collected: nothing of that goes away again
    # A worker of xdist ends without a word: whoever started it tidies up behind it.
    within = (
        os.environ.get("IPYTHONDIR") if "PYTEST_XDIST_WORKER" in os.environ else None
    )
    folder = tempfile.TemporaryDirectory(dir=within, ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)  # after the shells, which write at their own end
    os.environ["IPYTHONDIR"] = folder.name
    # Beside JupyterLab it comes with jsonschema, which every notebook imports: five
    # seconds of grammars for a kind of address that no notebook has.
    sys.modules.setdefault("rfc3987_syntax", None)
    if on_hardware:
        return
    from hypothesis import HealthCheck, settings

    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("search", patient)
    settings.register_profile("repeat", patient, derandomize=True)
    settings.load_profile("repeat")
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish():
    """Names in modules of tests are not the user's, whose modules are searched.

    There are thousands of them: each cell that is measured would look through all.
    """
    gc.enable()
    from gpumagic.gpu_mem import names

    installed, tests = names._library_folders, str(Path(__file__).parent)
    names._library_folders = lambda: (*installed(), tests)


def pytest_collection_modifyitems(items):
    """Begin with what takes longest, so that at the end nobody waits for one of it.

    A file is run whole by one worker (`--dist loadfile`), in the order it is written:
    what it sets up is set up once, and no test begins where others have not been.
    """
    turns = {name: turn for turn, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: turns.get("/".join(item.path.parts[-2:]), len(turns)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """What is there before a file's first test is not looked through by collections.

    Shells collect when they end, and so does much of what is tested. With torch and
    thousands of tests there are a million objects by then, which only live on: most
    of a test would be spent on them. Nor what a test has imported or kept that is as
    large.
    """
    file, blocks = item.config.stash.get(_FILE, (None, 0))
    if file != item.path or sys.getallocatedblocks() > blocks + _MANY:
        gc.collect()
        gc.freeze()
        item.config.stash[_FILE] = (item.path, sys.getallocatedblocks())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    """Skip what needs the simulator where torch is too old for it, and say so."""
    error = call.excinfo.value if call.excinfo is not None else None
    problem = getattr(error, "problem", "")
    if problem.startswith("the simulator needs torch"):
        call.excinfo = pytest.ExceptionInfo.from_exception(
            pytest.skip.Exception(problem)
        )
    return (yield)


@pytest.fixture(scope="session")
def browser():
    """A Chromium without a screen: one in a process, for Playwright stands no two."""
    from tests.browser import chromium

    if reason := chromium.why_not():
        pytest.skip(reason)
    with chromium.running() as program:
        yield program
