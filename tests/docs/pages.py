"""The pages as they are written: their fenced blocks, their headings, their links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
GUIDES = sorted((REPOSITORY / "docs").glob("**/*.md"))
TOLD = [README, *GUIDES]  # the pages whose cells run, and whose outputs are held
ALL = [
    *TOLD,
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "CHANGELOG.md",
    REPOSITORY / "notebooks" / "README.md",
]

_BLOCK = re.compile(
    r"^(?:<!-- sample: (?P<sample>\S+) -->\n)?"
    r"```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block; `sample` names the gallery's drawing that it is cut from."""

    language: str
    text: str
    sample: str | None = None


def name_of(path):
    """A page as a person calls it, such as docs/gpu_mem.md."""
    return path.relative_to(REPOSITORY).as_posix()


def blocks(path, language=None):
    """The fenced blocks of a page in order, all or those of one language."""
    found = [
        Block(each["language"], each["text"], each["sample"])
        for each in _BLOCK.finditer(path.read_text(encoding="utf-8"))
    ]
    return [each for each in found if language in (None, each.language)]


def prose(path):
    """A page without its fenced blocks and without code in its sentences."""
    text = _BLOCK.sub("", path.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


def links(path):
    """Where a page points to, as it is written."""
    return _LINK.findall(prose(path))


def anchors(path):
    """The headings of a page as GitHub makes anchors of them."""
    seen = {}
    found = set()
    text = _BLOCK.sub("", path.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found
