"""`python -m benchmarks.trainers`: each program bare and watched, and what was said.

Needs lightning, accelerate and transformers, as in `.venv-strangers`. With the word
"launchers" it is those that need ray[train] and Open MPI.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.runner import RESULTS, write_measurement
from benchmarks.trainers.planted import RANKS, SLOW_RANK, SLOW_S, STEPS

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
_LAUNCHERS = "launchers"
_LIMIT_S = 300
_PYTHON = [sys.executable]
_TORCHRUN = [
    *(*_PYTHON, "-m", "torch.distributed.run", "--standalone"),
    *("--nproc-per-node", str(RANKS)),
]
_ACCELERATE = [
    *(*_PYTHON, "-m", "accelerate.commands.launch"),
    *("--num_processes", str(RANKS), "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no"),
]
PROGRAMS: dict[
    str, tuple[Any, ...]
] = {  # by name: how it is started, its file, what it is told
    "accelerate launch --multi_gpu": ([*_ACCELERATE, "--multi_gpu"], "accelerated.py"),
    "accelerate launch --cpu": ([*_ACCELERATE, "--cpu"], "accelerated.py"),  # one rank
    "accelerate.debug_launcher": (_PYTHON, "accelerated.py", "--forks"),
    "Accelerator under torchrun": (_TORCHRUN, "accelerated.py"),
    "Lightning's Fabric": (_PYTHON, "fabric.py"),
    "Lightning's Trainer": (_PYTHON, "trainer.py"),
    "transformers' Trainer": (_TORCHRUN, "hugging_face.py"),
}
_MPIRUN = ["mpirun", "--oversubscribe", "-n", str(RANKS), *_PYTHON]
LAUNCHERS: dict[str, tuple[Any, ...]] = {
    "mpirun": (_MPIRUN, "started.py"),
    "Ray Train": (_PYTHON, "ray_train.py"),
}
_VERSIONS = ("torch", "accelerate", "lightning", "transformers")


def main() -> None:
    """Run all, and keep what was found with versions and date."""
    only = sys.argv[1:]
    of_launchers = only == [_LAUNCHERS]
    every = PROGRAMS | LAUNCHERS
    chosen = LAUNCHERS if of_launchers else only or PROGRAMS
    found = {name: compared(*every[name]) for name in chosen}
    for name, each in found.items():
        print(name, json.dumps(each, indent=2))
    if not only or of_launchers:
        packages = ("torch", "ray") if of_launchers else _VERSIONS
        versions = {each: importlib.metadata.version(each) for each in packages}
        if of_launchers:
            versions["mpirun"] = _said_first("mpirun", "--version")
        planted = {"rank": SLOW_RANK, "s of each step": SLOW_S, "steps": STEPS}
        said = {"versions": versions, "planted": planted, "programs": found}
        name = _LAUNCHERS if of_launchers else "trainers"
        print(write_measurement(RESULTS, name, said))


def _said_first(*command: str) -> str:
    """The first line that a program says."""
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()[0]


def compared(launcher: list[str], file: str, *words: str) -> dict[str, Any]:
    """One program bare and watched.

    Args:
        launcher: What starts its ranks.

        file: The program.

        words: What it is told.
    """
    command = [*launcher, str(HERE / file), *words]
    bare, watched = (_run(command, watch=each) for each in (False, True))
    report = (watched["ranks"] or [{}])[0].get("report") or {}
    text = (watched["ranks"] or [{}])[0].get("text") or ""
    digests = [[each["digest"] for each in ran["ranks"]] for ran in (bare, watched)]
    return {
        "exit": [bare["exit"], watched["exit"]],
        "left over": [bare["left"], watched["left"]],
        "ranks": len(digests[0]),
        "equal to the bit": digests[0] == digests[1] != [],
        "groups": [
            [each["groups"] for each in ran["ranks"]] for ran in (bare, watched)
        ],
        "named": report.get("slowest"),
        "first line": " ".join(text.split("\n\n")[0].split()),
        "own_s": [round(each["own_s"], 3) for each in report.get("times", ())],
        "waits_s": [round(each["waits_s"], 3) for each in report.get("times", ())],
        "steps": [len(each) for _, each in report.get("steps_s", ())],
        "took_s": [round(bare["took_s"], 1), round(watched["took_s"], 1)],
        **({"stderr": watched["said"]} if watched["exit"] or not report else {}),
    }


def _run(command: list[str], *, watch: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",  # as in a container
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PLANTED_WATCH": "1" if watch else "0",
            "PLANTED_OUT": folder,
        }
        began_s = time.monotonic()
        with subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as job:
            try:
                said = job.communicate(timeout=_LIMIT_S)[1]
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                said = f"ended after {_LIMIT_S} s"
        files = sorted(Path(folder).glob("?.json"))
        return {
            "exit": job.returncode,
            "took_s": time.monotonic() - began_s,
            "ranks": [json.loads(each.read_text()) for each in files],
            "left": _alive(folder),
            "said": said[-2000:],
        }


def _alive(folder: str) -> int:
    """How many processes there are that this job has started."""
    mark, count = f"PLANTED_OUT={folder}".encode(), 0
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            count += mark in each.read_bytes().split(b"\0")
        except OSError:
            continue
    return count


if __name__ == "__main__":
    main()
