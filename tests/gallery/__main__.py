"""Writes all samples on one page: `python -m tests.gallery [OUT_DIR]`.

The page is dressed as JupyterLab dresses an output, once light and once dark,
because that is where most of them are seen. Beside it, `palette.html` shows each
kind as everybody's eyes see it.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

from tests.drawing.eyes import EYES, as_svg_filter
from tests.gallery.samples import drawn

# JupyterLab 4.6, .jp-RenderedHTMLCommon, with its variables filled in.
_STYLE = """
body { margin: 0; font: 14px/1.6 system-ui, 'Segoe UI', Helvetica, Arial, sans-serif;
  background: #eee; color: #222 }
h1, h2 { font-weight: 600; margin: 1.2em 16px .4em } h2 { font-size: 15px }
h2 small { font-weight: 400; color: #555 }
.pair { display: flex; flex-wrap: wrap; gap: 8px; margin: 0 16px }
.out { flex: 1 1 620px; min-width: 0; padding: 12px 16px; overflow-x: auto;
  font-size: 13px; line-height: 1.6 }
.light { background: #fff; color: rgba(0,0,0,.87) }
.dark { background: #111; color: #fff }
.out table { border-collapse: collapse; border-spacing: 0; border: none;
  font-size: 13px; table-layout: fixed; margin: 0 auto 1em }
.out td, .out th, .out tr { vertical-align: middle; padding: .5em; line-height: normal;
  white-space: normal; max-width: none; border: none; text-align: right }
.out th { font-weight: bold }
.light tbody tr:nth-child(even) { background: #f5f5f5 }
.dark tbody tr:nth-child(even) { background: #212121 }
.out p { text-align: left; margin: 0 0 1em }
.out img { max-width: 100%; height: auto }
.bare { background: #fff; font-size: 13px; padding: 12px 16px }
.bare td, .bare th { border: 1px solid #d0d7de; padding: 6px 13px }
.bare table { border-collapse: collapse }
.texts { margin-top: 8px }
pre { flex: 1 1 620px; margin: 0; padding: 12px 16px; background: #fff;
  overflow-x: auto; font: 13px/1.35 'DejaVu Sans Mono', monospace }
details.more { margin: 4px 16px } details.more > summary { color: #555 }
"""


def page(samples) -> str:
    """The gallery as one HTML page."""
    body = "\n".join(_sample(name, drawing) for name, drawing in samples)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>gpumagic gallery</title><style>{_STYLE}</style>"
        f"<h1>gpumagic: every view</h1>{body}</html>"
    )


def _sample(name, drawing):
    shown = drawing.html()
    bare = re.sub(r' style="[^"]*"', "", shown)
    return f"""
<h2 id="{name}">{name} <small>{len(shown.encode()):,} bytes of HTML</small></h2>
<div class="pair"><div class="out light">{shown}</div>
<div class="out dark">{shown}</div></div>
<div class="pair texts"><pre>{html.escape(drawing.text())}</pre>
<pre>{html.escape(drawing.asked(drawing.folded).text())}</pre></div>
<details class="more"><summary>HTML without any style</summary>
<div class="bare">{bare}</div></details>"""


def palette(shown: str) -> str:
    """All kinds, light and dark, as they look to whom."""
    filters = "".join(map(as_svg_filter, EYES))
    body = "".join(
        f"<h2>{eyes}</h2>"
        f'<div class="pair" style="filter:url(#{eyes})">'
        f'<div class="out light">{shown}</div><div class="out dark">{shown}</div></div>'
        for eyes in EYES
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>gpumagic palette</title><style>{_STYLE}</style>"
        f'<svg width="0" height="0">{filters}</svg>'
        f"<h1>gpumagic: one colour, one meaning</h1>{body}</html>"
    )


def main(words) -> None:
    """Write the page, and say where."""
    folder = Path(words[0] if words else "build/gallery")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "index.html"
    target.write_text(page(drawn().items()), encoding="utf-8")
    shown = drawn()["palette"].html()
    (folder / "palette.html").write_text(palette(shown), encoding="utf-8")
    sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
