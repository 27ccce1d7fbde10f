"""Makes several hosts of one machine: each with a name and a network of its own.

They are namespaces of Linux, joined by a bridge. Nothing of the machine's own network
is touched, and all is gone with the process that has made them. Each host has what
misleads on real ones: its own name is a loopback address to itself, as Debian writes
it, and a second network has one address on all hosts, as bridges of containers have.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ALONE = (
    *("--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"),
)
_AS_ROOT = () if os.geteuid() == 0 else ("--user", "--map-root-user")
_INSIDE = "GPUMAGIC_TESTS_HOSTS"  # set where hosts can be made
_NETWORK = "10.99.0"
LOGIN, LOGIN_ADDRESS = "login", f"{_NETWORK}.1"
_DECOY = "172.17.0.1"

# Runs as the first process of a host, once its network has been moved into it.
_INIT = """
set -e
hostname {name}
mount -t proc proc /proc
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/resolv.conf /etc/resolv.conf
mount --bind {folder}/boot_id /proc/sys/kernel/random/boot_id
ip link set lo up
touch {folder}/ready
exec {python} -c 'import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # or orphans stay there as zombies
while True: signal.pause()'
"""


def why_not() -> str | None:
    """Why no hosts can be made here; None if they can."""
    missing = [each for each in ("unshare", "nsenter", "ip") if not shutil.which(each)]
    if missing:
        return f"this machine has no {', '.join(missing)}"
    network = ["ip", "link", "add", "name", "bridge0", "type", "bridge"]
    tried = subprocess.run(
        ["unshare", *_AS_ROOT, *_ALONE, *network],
        capture_output=True,
        text=True,
        check=False,
    )
    said = tried.stderr.strip().splitlines()
    why = f"no namespaces here: {said[-1] if said else tried.returncode}"
    return why if tried.returncode else None


def run_inside(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command where hosts can be made; what it leaves running ends with it."""
    return subprocess.run(
        ["unshare", *_AS_ROOT, *_ALONE, *command],
        env={**os.environ, _INSIDE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def is_inside() -> bool:
    """Whether this process was started by `run_inside`."""
    return _INSIDE in os.environ


class Host:
    """One of several.

    Args:
        name: What it calls itself.

        address: In the network that all are in.

        pid: Of its first process, as it is numbered outside.

        folder: With its files, and all that its programs say in `log`.
    """

    def __init__(self, name: str, address: str, pid: int, folder: Path) -> None:
        self.name, self.address, self.pid, self.folder = name, address, pid, folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self, *command: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program there."""
        enter = ["nsenter", "-t", str(self.pid), *["-n", "-u", "-m", "-p"], "--"]
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                [*enter, *command],
                env={**os.environ, **(env or {})},
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def python(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start Python there, the one that runs this."""
        return self.start(sys.executable, *arguments, env=env)


@contextlib.contextmanager
def made(names: Sequence[str], folder: Path) -> Iterator[dict[str, Host]]:
    """Make hosts, and a network in which this process is 10.99.0.1.

    Args:
        names: What they are called.

        folder: For their files.
    """
    _sh("ip link set lo up")
    _sh("ip link add name bridge0 type bridge && ip link set bridge0 up")
    _sh(f"ip addr add {LOGIN_ADDRESS}/24 dev bridge0")
    _sh(f"hostname {LOGIN}")
    addresses = {name: f"{_NETWORK}.{10 + at}" for at, name in enumerate(names)}
    (folder / "hosts").write_text(_names(LOGIN, addresses))
    _sh(f"mount --bind {folder}/hosts /etc/hosts")
    processes, found = [], {}
    try:
        for at, name in enumerate(names):
            process, found[name] = _made(name, at, addresses, folder / name)
            processes.append(process)
        yield found
    finally:
        for process in processes:
            process.kill()  # and the host with it
            process.wait()
        for process in (each for host in found.values() for each in host.started):
            process.wait()
        _sh("ip link del bridge0")


def _made(
    name: str, at: int, addresses: Mapping[str, str], folder: Path
) -> tuple[subprocess.Popen[bytes], Host]:
    folder.mkdir()
    (folder / "hosts").write_text(_names(name, {LOGIN: LOGIN_ADDRESS, **addresses}))
    (folder / "resolv.conf").touch()  # nobody is asked who cannot be reached
    (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    process = subprocess.Popen(
        [
            "unshare",
            *("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child"),
            *(
                "sh",
                "-c",
                _INIT.format(name=name, folder=folder, python=sys.executable),
            ),
        ]
    )
    _until((folder / "ready").exists)
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    host = Host(name, addresses[name], int(tasks.read_text().split()[0]), folder)
    _sh(
        f"ip link add name out{at} type veth peer name in{at} && "
        f"ip link set in{at} netns {host.pid} name eth0 && "
        f"ip link set out{at} master bridge0 up"
    )
    for line in (
        f"ip addr add {host.address}/24 dev eth0 && ip link set eth0 up",
        "ip link add name docker0 type bridge && ip link set docker0 up",
        f"ip addr add {_DECOY}/16 dev docker0",
    ):
        _sh(f"nsenter -t {host.pid} -n sh -c '{line}'")
    return process, host


def _names(own: str, addresses: Mapping[str, str]) -> str:
    """What a host calls itself, and what it calls the others."""
    others = [f"{a} {n}" for n, a in addresses.items() if n != own]
    return "\n".join(["127.0.0.1 localhost", f"127.0.1.1 {own}", *others]) + "\n"


def _sh(line: str) -> None:
    subprocess.run(["sh", "-c", line], check=True)


def _until(true: object, within_s: float = 10.0) -> None:
    until_s = time.monotonic() + within_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < until_s, "no host within ten seconds"
        time.sleep(0.01)
