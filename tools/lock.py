"""Write requirements.lock: the packages of this environment with the SHA-256 of the files that pip chooses for them.

Run it in the environment that the tests have passed in. The hashes are those of this platform and Python version;
torch, whose build depends on the machine, stays in constraints.txt without a hash.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
BUILD = ("hatchling", "editables", "tomlkit", "trove-classifiers")  # needed to install this package, not to run it
OWN_BUILD = re.compile(r"torch|triton|nvidia-.*|cuda-.*")  # torch, and what only some of its builds need
HEAD = """# Hashed dependencies for CI: {system}, Python {version}. Written by `python tools/lock.py`; do not edit.
# Installed by the Makefile with LOCK=requirements.lock. torch stays in constraints.txt.
"""


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def installed() -> list[str]:
    """name==version of every package of this environment, except for torch and what was installed from a folder."""
    lines = pip("freeze", "--exclude-editable").splitlines()
    return [line for line in lines if "==" in line and not OWN_BUILD.fullmatch(line.split("==")[0])]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", str(report))
        pip("install", *options, *installed(), *BUILD)
        found = json.loads(report.read_text())["install"]
    lines = []
    for one in sorted(found, key=lambda one: str(one["metadata"]["name"]).lower()):
        name, version = one["metadata"]["name"], one["metadata"]["version"]
        lines.append(f"{name}=={version} --hash=sha256:{one['download_info']['archive_info']['hashes']['sha256']}")
    system = f"{platform.system()} {platform.machine()}"
    head = HEAD.format(system=system, version=".".join(platform.python_version_tuple()[:2]))
    LOCK.write_text(head + "\n".join(lines) + "\n")
    print(f"{LOCK}: {len(lines)} packages")


if __name__ == "__main__":
    main()
