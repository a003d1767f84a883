"""Writes the option tables of docs/reference.md from the options classes, which describe each option once.

    python tools/reference.py

A table stands between `<!-- options: MODULE:NAME -->` and `<!-- end of options -->`. NAME is a class of options, whose
defaults are shown, without options that it inherits; or an instance of one, of which only the changed values are shown;
or the registry of methods, of which the options are shown that are not common to all methods.
"""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from frcl.baselines.options import TrainingOptions
from frcl.engine.train import OptimiserOptions
from frcl.learners.options import FRCLOptions
from frcl.methods import Method
from frcl.options import Options, described
from frcl.registry import Registry

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
BLOCK = re.compile(r"(<!-- options: (\S+):(\S+) -->\n).*?(?=<!-- end of options -->)", re.S)
Source = type[Options] | Options | Registry[Method]


def table(source: Source) -> str:
    """The options as a Markdown table."""
    if isinstance(source, Registry):
        return _markdown(("Method", "Option", "Type", "Default", "Meaning"), _of_methods(source))
    return _markdown(("Option", "Type", "Default", "Meaning"), _of_options(source))


def written(text: str) -> str:
    """The page with every table replaced by the current one."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table(getattr(import_module(found[2]), found[3]))}\n", text)


def _of_options(source: type[Options] | Options) -> list[tuple[str, ...]]:
    if isinstance(source, Options):
        usual = {name: value for name, _, value, _ in described(type(source)())}
        return [row[1:] for row in _rows("", source) if _changed(row, usual)]
    documented = [base for base in source.__bases__ if base is not OptimiserOptions]  # in a table of their own
    inherited = {f"`{item.name}`" for base in documented for item in fields(base)}
    return [row[1:] for row in _rows("", source()) if row[1] not in inherited]


def _changed(row: tuple[str, ...], usual: dict[str, object]) -> bool:
    return row[3] != _code(usual[row[1].strip("`")])


def _of_methods(methods: Registry[Method]) -> list[tuple[str, ...]]:
    common = {item.name for item in fields(TrainingOptions)}
    rows: dict[tuple[str, ...], list[str]] = {}  # methods with the same option share a row
    for name, method in methods.items():
        if not isinstance(method.options, FRCLOptions):
            for row in _rows(name, method.options):
                if row[1].strip("`") not in common:
                    rows.setdefault(row[1:], []).append(f"`{name}`")
    return [(", ".join(names), *row) for row, names in rows.items()]


def _rows(method: str, options: Options) -> list[tuple[str, ...]]:
    return [
        (method, f"`{name}`", "`" + kind.replace("'", '"').replace("|", "\\|") + "`", _code(value), meaning)
        for name, kind, value, meaning in described(options)
    ]


def _code(value: object) -> str:
    return "`" + repr(value).replace("'", '"') + "`"


def _markdown(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
