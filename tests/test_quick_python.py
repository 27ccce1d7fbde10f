"""Forked programs are as those that are started, but for what is said there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import quick_python
from tests.asleep import Asleep

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone")


def both(*words, **options):
    """What a program comes to, forked and started."""
    command = [sys.executable, *words]
    forked = quick_python.run(command, **options)
    started = quick_python.anew(command, **options)
    return [(each.returncode, each.stdout, each.stderr) for each in (forked, started)]


PROGRAMS = {
    "says and reads": "import sys; print(sys.stdin.read()); print(1, file=sys.stderr)",
    "ends with a sentence": "import sys; sys.exit('no')",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "is told at its end": "import atexit; atexit.register(print, 'bye')",
    "waits for threads": (
        "import threading, time\n"
        "def late():\n    time.sleep(0.05)\n    print('late')\n"
        "threading.Thread(target=late).start()"
    ),
    "knows its words": "import sys; print(sys.argv, __name__, sys.path[0])",
    "knows its folder": "import os; print(os.getcwd(), os.environ['HERE'])",
    "is warned": "import warnings; warnings.warn('so')",
    "imports nothing unasked": (
        "import sys\nfor name in ('IPython', 'torch', 'pytest'):\n"
        "    print(name in sys.modules)"
    ),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_comes_to_the_same(program, tmp_path):
    """Its end, its output and what it sees of itself are those of a fresh process."""
    env = os.environ | {"HERE": "there"}
    words = "-W", "error::UserWarning", "-c", program, "a", "b"

    forked, started = both(*words, input="typed", cwd=tmp_path, env=env)

    assert forked[:2] == started[:2]
    assert forked[2].splitlines()[-1:] == started[2].splitlines()[-1:]


def test_a_module_is_run_by_its_name(tmp_path):
    """Its folder is the first that is searched, and it is the program."""
    (tmp_path / "mine.py").write_text("import sys; print(__name__, sys.argv[1:])")

    forked, started = both("-m", "mine", "x", cwd=tmp_path)

    assert forked == started == (0, "__main__ ['x']\n", "")


def test_what_does_not_end_in_time_is_killed():
    """And it is said, as subprocess does."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]

    with pytest.raises(subprocess.TimeoutExpired):
        quick_python.run(command, timeout=0.2)


def test_what_was_started_goes_on_in_a_group_of_its_own_until_it_is_ended():
    """A signal to its group meets nobody else; once it is gone, that is seen."""
    program = quick_python.Started(
        [sys.executable, "-c", "import time; time.sleep(60)"]
    )

    assert program.poll() is None
    assert os.getpgid(program.pid) == program.pid
    program.kill()
    assert program.wait() == 0


def test_a_module_that_lies_elsewhere_is_found_there(tmp_path, monkeypatch):
    """Who stands before a sleeping module in the path is imported in its place."""
    for folder, value in (("usual", 1), ("nearer", 2)):
        (tmp_path / folder / "sleeper").mkdir(parents=True)
        (tmp_path / folder / "sleeper/__init__.py").write_text(f"value = {value}")
        (tmp_path / folder / "sleeper/part.py").write_text(f"value = {value}")
    monkeypatch.syspath_prepend(str(tmp_path / "usual"))
    asleep = Asleep(("sleeper", "sleeper.part"))
    monkeypatch.setattr(sys, "meta_path", [asleep, *sys.meta_path])
    monkeypatch.syspath_prepend(str(tmp_path / "nearer"))

    import sleeper.part

    assert (sleeper.value, sleeper.part.value) == (2, 2)
    del sys.modules["sleeper"], sys.modules["sleeper.part"]
