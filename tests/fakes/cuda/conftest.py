"""What is tested here is the machine itself: its tests run on it alone."""

from pathlib import Path

import pytest

from tests.fakes.cuda import is_on

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark every test of this folder; the hook is handed those of all folders."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.hardware)


def pytest_runtest_setup():
    """Skip a test of this folder on any other machine, before its fixtures."""
    if not is_on():
        pytest.skip("torch's CUDA runs without a GPU by `make cuda` alone")
