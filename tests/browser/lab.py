"""A Jupyter server of our own: nothing of the user's in it, nothing left of it.

It serves JupyterLab and Notebook 7 at once: one file opens in either.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = {"lab": "doc/tree", "notebook7": "notebooks"}
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}

_START_S, _STOP_S = 300, 10

# No message of JupyterLab's own may lie over an output, or ask the network.
_SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    # Tab waits for the kernel, also on a busy machine: its first use loads jedi.
    "@jupyterlab/completer-extension/manager": {"providerTimeout": 60_000},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
    "@jupyterlab/extensionmanager-extension/plugin": {"enabled": False},
    # All cells are laid out at once, whether they are in sight or not.
    "@jupyterlab/notebook-extension/tracker": {
        "windowingMode": "none",
        "scrollPastEnd": False,
    },
    # Notebook 7 would show a long output through a window of a few lines.
    "@jupyter-notebook/notebook-extension/scroll-output": {"autoScrollOutputs": False},
}
_OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    # What ipyparallel adds to the page complains in a dialog without its server's part.
    (
        "--ServerApp.jpserver_extensions="
        "{'notebook': True, 'notebook_shim': True, 'ipyparallel': True}"
    ),
)


@dataclass(frozen=True)
class Lab:
    """A running server."""

    folder: Path  # all that it knows; notebooks are in `root` below it
    token: str  # what opens it
    url: str  # where it is

    @property
    def root(self) -> Path:
        """Where the notebooks are."""
        return self.folder / "root"

    def address(self, notebook: str, front_end: str = "lab") -> str:
        """The page that shows one notebook and nothing beside it."""
        return f"{self.url}{PAGES[front_end]}/{notebook}?token={self.token}"

    def use_theme(self, name: str) -> None:
        """Set the theme of the pages that are opened from now on."""
        theme = {"theme": THEMES[name], "adaptive-theme": False}
        _write_settings(self.folder, "@jupyterlab/apputils-extension/themes", theme)


def environment(folder: Path) -> dict[str, str]:
    """The environment of a server, and of its kernels: ours importable, all new."""
    return {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONWARNINGS": "ignore",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
    }


@contextmanager
def running(folder: Path):
    """A server on a free port of this machine alone; ended with all its kernels."""
    for name, settings in _SETTINGS.items():
        _write_settings(folder, name, settings)
    (folder / "root").mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex()
    with (folder / "log.txt").open("w") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", *_OPTIONS),
                f"--port={_free_port()}",
                str(folder / "root"),
            ],
            env={**environment(folder), "JUPYTER_TOKEN": token},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        lab = Lab(folder, token, _wait_for_url(server, folder, token))
        lab.use_theme("light")
        yield lab
    finally:
        _end(server)


def _write_settings(folder, name, settings):
    path = folder / "settings" / f"{name}.jupyterlab-settings"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings))


def _free_port():
    """One that nobody has: two servers that look for one at once find the same."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _wait_for_url(server, folder, token):
    """Where it is, once it answers: it writes that down before it has got the port."""
    noted = folder / "runtime" / f"jpserver-{server.pid}.json"
    give_up = time.monotonic() + _START_S
    while time.monotonic() < give_up and server.poll() is None:
        if noted.exists() and (url := _answering(noted, token)):
            return url
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start: {(folder / 'log.txt').read_text()}")


def _answering(noted, token):
    """Another server would not take our token."""
    try:
        url = json.loads(noted.read_text())["url"]
        ours = {"Authorization": f"token {token}"}
        status = Request(f"{url}api/status", headers=ours)  # noqa: S310
        with urlopen(status, timeout=60):  # noqa: S310  (our own server)
            return url
    except (OSError, ValueError):
        return None


def _end(server):
    """End the server, then whatever it started: a kernel is in a group of its own."""
    import psutil

    try:
        started = psutil.Process(server.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    server.terminate()
    try:
        server.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    _, alive = psutil.wait_procs(started, timeout=1)
    for process in alive:
        process.kill()
