"""What mkdocs calls: pages made from other files are added, and each page completed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

# mkdocs loads this file by its path, from wherever it was called.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs_build import course, gallery, links, reference, rooms

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written elsewhere: README and others, gallery, course."""
    for page, text in _made_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(
    markdown: str,
    page: Page,
    config: MkDocsConfig,  # noqa: ARG001 - mkdocs passes all by name
    files: Files,  # noqa: ARG001
) -> str:
    """Let links lead to pages of the site, and add what is generated to a guide."""
    name = page.file.src_uri
    text = links.for_the_site(markdown, name)
    room = rooms.of_guide(name)
    return text if room is None else text + "\n" + _below_the_guide(room)


def on_post_page(
    output: str,
    page: Page,
    config: MkDocsConfig,  # noqa: ARG001 - mkdocs passes all by name
) -> str:
    """Put drawings and outputs in, after Markdown and search have read the page."""
    name = page.file.src_uri
    if name.startswith("gallery/"):
        return gallery.with_drawings(output, Path(name).stem)
    return course.with_outputs(output, name)


def _made_pages() -> dict[str, str]:
    written = {
        page: (links.REPOSITORY / source).read_text(encoding="utf-8")
        for source, page in links.WRITTEN_ELSEWHERE.items()
    }
    return written | gallery.pages() | course.pages()


def _below_the_guide(room: rooms.Room) -> str:
    options = reference.options(room) if room.magic else ""
    return "\n\n".join(
        (options, reference.functions(room), gallery.answers(room.folder))
    )
