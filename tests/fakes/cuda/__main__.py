"""`python -m tests.fakes.cuda [--scenario NAME] ARGUMENTS...` runs Python there."""

import os
import sys

from tests.fakes.cuda import environment

arguments = sys.argv[1:]
scenario = ["idle_gpu"]
if arguments[:1] == ["--scenario"]:
    scenario, arguments = arguments[1:2], arguments[2:]
os.execve(sys.executable, [sys.executable, *arguments], environment(*scenario))  # noqa: S606
