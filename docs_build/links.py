"""Links that lead on GitHub through the repository, and in the site to its pages.

Guides and README point to files beside them, as GitHub wants it. In the site those
files are pages, of other names; what has no page there becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

# Files of the repository that are pages of the site as they are.
WRITTEN_ELSEWHERE = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "notebooks/README.md": "notebooks/index.md",
}

_FENCES = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def page_of(file: str) -> str | None:
    """The page that shows a file of the repository; None if there is none."""
    if file in WRITTEN_ELSEWHERE:
        return WRITTEN_ELSEWHERE[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if file.startswith("notebooks/") and file.endswith(".ipynb"):
        return file.removesuffix(".ipynb") + ".md"
    return None


def file_of(page: str) -> str:
    """The file of the repository that a page shows."""
    for file, written in WRITTEN_ELSEWHERE.items():
        if written == page:
            return file
    return page if page.startswith("notebooks/") else f"docs/{page}"


def for_the_site(markdown: str, page: str) -> str:
    """The text of a page with its links as the site needs them.

    Args:
        markdown: As it is written in the repository.

        page: Its place in the site, such as "gpu_mem.md".
    """
    folder = posixpath.dirname(file_of(page))

    def relinked(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if not target or ":" in target:
            return found[0]
        linked = page_of(posixpath.normpath(posixpath.join(folder, target)))
        if linked is None:
            return found["text"]
        place = posixpath.relpath(linked, posixpath.dirname(page) or ".")
        return f"{found['image']}[{found['text']}]({place}{anchor and '#' + anchor})"

    # Every second part is a fenced block, and stays as it is.
    parts = _FENCES.split(markdown)
    parts[::2] = [_LINK.sub(relinked, part) for part in parts[::2]]
    return "".join(parts)
