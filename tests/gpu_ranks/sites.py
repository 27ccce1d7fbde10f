"""Sets hosts up as a site does for its users: logins by SSH, and Slurm with its GPUs.

All of it lives in namespaces (`hosts`) and in one folder, and goes with them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu_ranks import hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.gpu_ranks.hosts import Host

ROOT = Path(__file__).parents[2]
GPUS = 2  # of each host, as Slurm knows it
_PATIENCE_S = 30.0
_SSHD, _SSH = Path("/etc/ssh/sshd_config"), Path("/etc/ssh/ssh_config")
_SLURM = Path("/etc/slurm")

_SERVER = """
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
Subsystem sftp internal-sftp
SetEnv PATH={python}:/usr/bin:/bin PYTHONPATH={root} OMP_NUM_THREADS=1
"""
_CLIENT = """
IdentityFile {folder}/user
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""
_CLUSTER = """
ClusterName=two
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} NodeAddr={address} CPUs=8 RealMemory=1000 Gres=gpu:h100:{gpus}"


def why_no_logins() -> str | None:
    """Why hosts here cannot be logged in to; None if they can."""
    return hosts.why_not() or _lacks("sshd", "ssh", "scp", "ssh-keygen") or _no_root()


def why_no_batch() -> str | None:
    """Why there can be no Slurm here; None if there can."""
    servers = "munged", "slurmctld", "slurmd"
    return hosts.why_not() or _lacks(*servers, "srun", "sbatch") or _no_root()


def _lacks(*programs: str) -> str | None:
    missing = [each for each in programs if not _program(each)]
    return f"this machine has no {', '.join(missing)}" if missing else None


def _program(name: str) -> str | None:
    """Where a server lies, which is not always where users look."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _no_root() -> str | None:
    return None if os.geteuid() == 0 else "servers for logins and batches need root"


@contextlib.contextmanager
def with_logins(names: tuple[str, ...], folder: Path) -> Iterator[dict[str, Host]]:
    """Hosts into which the user gets by SSH with a key, each with a home of its own.

    Args:
        names: What they are called.

        folder: For their files, and those of SSH.
    """
    for key in ("host", "user"):
        quietly = ["-q", "-t", "ed25519", "-N", ""]
        subprocess.run(["ssh-keygen", *quietly, "-f", str(folder / key)], check=True)
    python = Path(sys.executable).parent
    server = _SERVER.format(folder=folder, python=python, root=ROOT)
    (folder / "sshd_config").write_text(server)
    (folder / "ssh_config").write_text(_CLIENT.format(folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)  # it wants an empty folder of that name
    put(folder / "ssh_config", _SSH)
    put(_home(folder, "login"), Path("/etc/passwd"))
    with hosts.made(names, folder) as machines:
        for name, host in machines.items():
            put(_home(folder, name), Path("/etc/passwd"), host)
            sshd = _program("sshd") or "sshd"
            host.start(sshd, "-D", "-e", "-f", str(folder / "sshd_config"))
            _until(lambda name=name: _runs("ssh", name, "true"), f"no login at {name}")
        yield machines


def _home(folder: Path, name: str) -> Path:
    """The file that says where users are at home."""
    home, file = folder / f"home-{name}", folder / f"passwd-{name}"
    home.mkdir()
    lines = Path("/etc/passwd").read_text().splitlines()
    others = [each for each in lines if not each.startswith("root:")]
    file.write_text("\n".join([f"root:x:0:0:root:{home}:/bin/sh", *others]) + "\n")
    return file


@contextlib.contextmanager
def with_batches(names: tuple[str, ...], folder: Path) -> Iterator[dict[str, Host]]:
    """Hosts to which Slurm gives jobs, each with GPUs that Slurm takes for such.

    Args:
        names: What they are called.

        folder: For their files, and those of Slurm.
    """
    folder.chmod(0o755)  # it checks who may write above its sockets
    with hosts.made(names, folder) as machines:
        _write_slurms(machines, folder)
        put(folder / "slurm", _SLURM)
        servers = [_munge(folder)]
        servers.append(_server(folder, "slurmctld", "-D", "-i"))
        for host in machines.values():
            put(folder / "slurm", _SLURM, host)
            host.start(_program("slurmd") or "slurmd", "-D", "-N", host.name)
        try:
            _until(lambda: _idle() == len(machines), "Slurm has no idle nodes")
            yield machines
        finally:
            for each in servers:
                each.kill()
                each.wait()


def _write_slurms(machines: Mapping[str, Host], folder: Path) -> None:
    own = folder / "slurm"
    own.mkdir()
    for at in range(GPUS):
        subprocess.run(
            ["mknod", str(folder / f"nvidia{at}"), "c", "1", "3"], check=True
        )
    nodes = [
        _NODE.format(name=host.name, address=host.address, gpus=GPUS)
        for host in machines.values()
    ]
    (own / "slurm.conf").write_text(
        _CLUSTER.format(
            folder=folder,
            login=hosts.LOGIN,
            address=hosts.LOGIN_ADDRESS,
            nodes="\n".join(nodes),
        )
    )
    files = f"{folder}/nvidia[0-{GPUS - 1}]"
    (own / "gres.conf").write_text(f"Name=gpu Type=h100 File={files}\n")


def _munge(folder: Path) -> subprocess.Popen[bytes]:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    words = ("key-file", "socket", "pid-file", "log-file", "seed-file")
    files = [f"--{each}={folder}/munge.{each.partition('-')[0]}" for each in words]
    server = _server(folder, "munged", "-F", "-f", *files)
    _until((folder / "munge.socket").exists, "munged has not begun")
    return server


def _server(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    with (folder / f"{command[0]}.said").open("w") as said:
        program = _program(command[0]) or command[0]
        return subprocess.Popen([program, *command[1:]], stdout=said, stderr=said)


def _idle() -> int:
    """How many nodes wait for jobs."""
    told = subprocess.run(
        ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"],
        capture_output=True,
        text=True,
        check=False,
    )
    return len(told.stdout.split())


def put(file: Path, place: Path, host: Host | None = None) -> None:
    """Let a file stand where another one does, on a host or here."""
    enter = [] if host is None else ["nsenter", "-t", str(host.pid), "-m"]
    subprocess.run([*enter, "mount", "--bind", str(file), str(place)], check=True)


def _runs(*command: str) -> bool:
    ran = subprocess.run(command, capture_output=True, check=False)
    return ran.returncode == 0


def _until(true: Callable[[], object], otherwise: str) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < until_s, otherwise
        time.sleep(0.1)
