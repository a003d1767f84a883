"""Writes the option tables of docs/reference.md from the options classes, which describe each option once.

    python tools/reference.py

A table stands between `<!-- options: MODULE:NAME -->` and `<!-- end of options -->`, where NAME is a class of options,
whose defaults are shown, or an instance of one, of which only the changed values are shown.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from frcl.options import Options, described

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
BLOCK = re.compile(r"(<!-- options: (\S+):(\S+) -->\n).*?(?=<!-- end of options -->)", re.S)


def table(named: type[Options] | Options) -> str:
    """The options as a Markdown table: all of a class, the changed ones of an instance."""
    options = named if isinstance(named, Options) else named()
    usual = {name: value for name, _, value, _ in described(type(options)())}
    rows = ["| Option | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    for name, kind, value, meaning in described(options):
        if options is not named or value != usual[name]:
            rows.append(f"| `{name}` | {_code(kind)} | `{_shown(value)}` | {meaning} |")
    return "\n".join(rows) + "\n"


def written(text: str) -> str:
    """The page with every table replaced by the current one."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table(getattr(import_module(found[2]), found[3]))}\n", text)


def _code(kind: str) -> str:
    return "`" + kind.replace("'", '"').replace("|", "\\|") + "`"


def _shown(value: object) -> str:
    return repr(value).replace("'", '"')


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
