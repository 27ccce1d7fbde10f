"""One JupyterLab and one Chromium for all tests here; skipped where one is missing."""

from __future__ import annotations

import importlib.util

import pytest

from tests.browser import chromium, notebooks
from tests.browser.lab import THEMES, running
from tests.browser.page import VIEWS, open_notebook

_MODULES = ("playwright", "axe_playwright_python", "jupyterlab", "nbclient")
_PAGES = [(theme, trust) for theme in THEMES for trust in ("untrusted", "trusted")]


@pytest.fixture(scope="session")
def _all_there():
    missing = [name for name in _MODULES if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (gpumagic[browser])")
    if chromium.path() is None:
        pytest.skip(f"no Chromium on the PATH: {' or '.join(chromium.NAMES)}")


@pytest.fixture(scope="session")
def lab(_all_there, tmp_path_factory):
    """A JupyterLab that has the notebooks."""
    with running(tmp_path_factory.mktemp("lab")) as server:
        notebooks.save(server.folder)
        yield server


@pytest.fixture(scope="session")
def browser(_all_there):
    """A Chromium without a screen."""
    with chromium.running() as program:
        yield program


@pytest.fixture(scope="session", params=_PAGES, ids="-".join)
def opened(request, lab, browser):
    """The notebook with the samples, in each theme, trusted and not."""
    theme, trust = request.param
    lab.use_theme(theme)
    notebook = open_notebook(browser, lab, f"{trust}.ipynb", f"{theme}-{trust}")
    notebook.page.evaluate("look.openDetails()")
    notebook.view(VIEWS["wide"])
    yield notebook
    notebook.page.context.close()


@pytest.fixture
def wide(opened):
    """That notebook in a window that is wide enough."""
    opened.view(VIEWS["wide"])
    return opened


@pytest.fixture
def live(lab, browser):
    """An empty notebook with a running kernel."""
    lab.use_theme("light")
    notebook = open_notebook(browser, lab, "live.ipynb", "live")
    yield notebook
    notebook.page.context.close()


@pytest.fixture(scope="session")
def said():
    """What the first page said, for the others to be compared with."""
    return {}
