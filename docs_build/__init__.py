"""Makes the parts of the pages that nobody writes by hand; mkdocs calls `hooks.py`."""
