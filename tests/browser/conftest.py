"""One Jupyter server for all tests of a process; skipped where there can be none."""

from __future__ import annotations

import importlib.util

import pytest

from tests.browser import chromium, notebooks
from tests.browser.lab import running
from tests.browser.page import VIEWS, open_notebook

_MODULES = ("axe_playwright_python", "jupyterlab", "notebook", "nbclient")


@pytest.fixture(scope="session")
def _all_there():
    missing = [name for name in _MODULES if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (gpumagic[browser])")
    if reason := chromium.why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def lab(_all_there, tmp_path_factory):
    """A server for JupyterLab and for Notebook 7."""
    with running(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def samples(lab):
    """The server, which has the notebook with the samples now."""
    notebooks.save(lab.folder)
    return lab


@pytest.fixture(scope="session")
def opened(request, samples, browser):
    """The notebook with the samples on one of the pages that a test names."""
    where = request.param
    samples.use_theme(where.theme)
    notebook = open_notebook(
        browser, samples, f"{where.trust}.ipynb", "-".join(where), where.front_end
    )
    notebook.page.evaluate("look.openDetails()")
    notebook.view(VIEWS["wide"])
    yield notebook
    notebook.page.context.close()


@pytest.fixture
def live(request, lab, browser):
    """An empty notebook with a running kernel and the extension loaded."""
    from tests.browser import hands

    front_end = getattr(request, "param", "lab")
    lab.use_theme("light")
    file = notebooks.save_empty(lab.root, f"live-{front_end}")
    notebook = open_notebook(browser, lab, file, f"live-{front_end}", front_end)
    hands.run(notebook.page, "%load_ext gpumagic")
    yield notebook
    notebook.page.context.close()


@pytest.fixture(scope="session")
def said():
    """What the first page said, for the others to be compared with."""
    return {}
