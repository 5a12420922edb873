"""What `make docs` does beside turning Markdown into pages; mkdocs.yml names this file.

state diagrams       become tables, and a topology's drawing an SVG: the site loads no script that draws
prompts              in docstrings become blocks of code in the reference, and so do lists in columns of a package's docstring
decisions            are all in the navigation, by number, behind their index
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from griffe import Extension

BLOCK = re.compile(r"^```(?P<language>python|mermaid)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TRANSITION = re.compile(r"^ +(\S+) --> (\w+)(?:: (.*))?$", re.MULTILINE)
COLUMNS = re.compile(r"(?:^(?!>>>|\.\.\.)\S.*? {2,}\S.*\n?){2,}", re.MULTILINE)
PROMPT = re.compile(r"^>>> .*?(?=^$|\Z)", re.MULTILINE | re.DOTALL)


class Prompts(Extension):
    """Makes examples at the prompt, in docstrings, and lists in columns of a package, blocks of code. Hides internal bases."""

    def on_class_instance(self, *, cls: Any, **_: Any) -> None:
        cls.bases = [base for base in cls.bases if str(base) != "StormNames"]

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            text = COLUMNS.sub(lambda lines: f"```text\n{lines[0].rstrip()}\n```\n", text) if obj.is_module else text
            obj.docstring.value = fenced(text)


def on_config(config: Any) -> Any:
    folder = Path(config.docs_dir)
    notes = [note.relative_to(folder).as_posix() for note in sorted(folder.glob("decisions/0*.md"))]
    next(part for part in config.nav if "Inside" in part)["Inside"].append(
        {"Decisions": ["decisions/index.md", *notes]}
    )
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    example = next((block["text"] for block in BLOCK.finditer(markdown) if "builder.build()" in block["text"]), "")

    def drawn(block: re.Match[str]) -> str:
        if block["language"] == "python":
            return block[0]
        return as_table(block["text"]) if "stateDiagram" in block["text"] else as_picture(example)

    return BLOCK.sub(drawn, markdown)


def as_table(diagram: str) -> str:
    """Return the transitions of a state diagram as a table."""
    rows = [[part or "" for part in found] for found in TRANSITION.findall(diagram)]
    named = [[start.replace("[*]", "(begin)"), event, end.replace("[*]", "(end)")] for start, end, event in rows]
    return "\n".join(["| in the state | comes / and then | next |", "|---|---|---|", *map(" | ".join, named)])


def as_picture(example: str) -> str:
    """Return the drawing of the topology that a page's example builds."""
    from windowing.local import to_svg

    scope: dict[str, Any] = {}
    exec(compile(example, "example", "exec"), scope)
    drawing = base64.b64encode(to_svg(scope["topology"]).encode()).decode()
    return f'<img class="drawing" alt="the topology" src="data:image/svg+xml;base64,{drawing}">'


def fenced(text: str) -> str:
    return PROMPT.sub(lambda prompt: f"```pycon\n{prompt[0].rstrip()}\n```\n", text)
