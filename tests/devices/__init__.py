"""The contract every runtime keeps, and what is particular to each of them."""

import pytest

# Its asserts are to explain themselves as those of a test module do.
pytest.register_assert_rewrite("tests.devices.contract")
