"""What is said of the versions of torch is what `make torches` has found."""

from __future__ import annotations

import json
import re
import tomllib

from gpumagic.gpu_doctor.checks import TESTED
from tests.torches import RESULTS, ROOT


def test_every_torch_that_is_named_has_passed():
    """Doctor, README, Makefile and results have the same versions; no test failed."""
    results = json.loads(RESULTS.read_text())
    makefile = (ROOT / "Makefile").read_text()
    readme = " ".join((ROOT / "README.md").read_text().split())

    # Every check runs on that of development; the others have results of their own.
    assert {*results, development()} == {*TESTED}
    assert re.search(r"^TORCHES := (.*)$", makefile, re.MULTILINE)[1].split() == [
        *TESTED
    ]
    assert f"torch {', '.join(TESTED[:-1])} and {TESTED[-1]} without a GPU" in readme
    for version, result in results.items():
        assert result["passed"] > 1000, version
        assert result["failed"] == 0, version


def test_the_oldest_that_is_asked_for_and_the_one_of_development_are_among_them():
    """The range of the package begins where the tests do; ours is one of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    oldest = ".".join(TESTED[0].split(".")[:2])
    assert f"torch>={oldest}" in project["optional-dependencies"]["torch"]
    assert development() in TESTED


def development():
    """The version that constraints.txt asks for."""
    constraints = (ROOT / "constraints.txt").read_text()
    return re.search(r"^torch==(.*)$", constraints, re.MULTILINE)[1]
