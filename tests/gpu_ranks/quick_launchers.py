"""What a Cluster of ipyparallel is given so that its processes are forks.

By name, so that a notebook's own `Cluster(n=4)` can be told in its kernel's options;
who forks is told in the environment (`quick_engines.forking`).
"""

from __future__ import annotations

import os

import psutil
from ipyparallel.cluster import launcher
from traitlets import Float, Integer

from tests.gpu_ranks.quick_engines import forks_here


class Forked(launcher.LocalProcessLauncher):  # type: ignore[misc]
    """Starts a module of Python in a fork."""

    def start(self) -> None:
        """Start it, and wait for its end beside."""
        said = os.open(self.output_file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            env = {**os.environ, **self.get_env()}
            words = self.args[self.args.index("-m") + 1 :]
            files = nothing, said, said
            self.pid = forks_here().start(words, files, env=env, folder=self.work_dir)
        finally:
            os.close(said)
            os.close(nothing)
        self.process = psutil.Process(self.pid)
        self.notify_start(self.pid)
        self._start_waiting()


class Controller(Forked, launcher.LocalControllerLauncher):  # type: ignore[misc]
    """The controller as a fork."""


class Engine(Forked, launcher.LocalEngineLauncher):  # type: ignore[misc]
    """An engine as a fork."""

    # They do not hear the signal that is to end them while they wait for messages.
    stop_seconds_until_kill = Integer(0)


class Engines(launcher.LocalEngineSetLauncher):  # type: ignore[misc]
    """All engines as forks."""

    launcher_class = Engine
    delay = Float(0.0)  # forks of one process are no flood


OF_A_CLUSTER = {
    f"{kind}_launcher_class": f"{__name__}.{name}"
    for kind, name in (("controller", "Controller"), ("engine", "Engines"))
}
