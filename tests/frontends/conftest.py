"""A Chromium for what is looked at as a page or on paper."""

from __future__ import annotations

import importlib.util

import pytest

from tests.browser import chromium


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a screen."""
    if not importlib.util.find_spec("playwright"):
        pytest.skip("not installed: playwright (gpumagic[browser])")
    if chromium.path() is None:
        pytest.skip(f"no Chromium on the PATH: {' or '.join(chromium.NAMES)}")
    with chromium.running() as program:
        yield program
