"""Why rows of the tables differ from what was published, as reasons.toml has it."""

import tomllib
from pathlib import Path

NOT_KNOWN = "not known"


def read_reasons() -> dict[str, dict[str, str]]:
    """Why cells differ from the paper, or from the numbers of their authors, by table and name."""
    return tomllib.loads((Path(__file__).parent / "reasons.toml").read_text(encoding="utf-8"))
