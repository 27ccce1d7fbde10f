"""A place in a kernel's cell has that cell's number, on IPython 7 as well."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic import extension


@pytest.fixture
def shell():
    """A shell that names its cells as a kernel does: by a hash of their text."""
    from ipykernel.compiler import XCachingCompiler

    shell = InteractiveShell.instance()
    shell.compile = XCachingCompiler()
    yield shell
    extension.unload(shell)
    InteractiveShell.clear_instance()


def test_a_place_is_told_by_the_number_of_its_cell(shell):
    """And not by the file that its code counts as; unloading leaves nothing behind."""
    before = dict(vars(shell.compile))
    extension.load(shell)
    shell.execution_count = 9

    shell.run_cell(
        "import sys\nfrom gpumagic.report.places import line_in\n"
        "where = line_in(sys._getframe().f_code.co_filename, 2).where",
        store_history=True,
    ).raise_error()

    assert shell.user_ns["where"] == "In [9], line 2"
    extension.unload(shell)
    assert vars(shell.compile).keys() == before.keys()
