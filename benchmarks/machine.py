"""The machine and software of a run, stored with every result."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "windowing", "pyspark", "pyarrow", "pandas", "numpy", "sortedcontainers", "bytewax", "river", "streamz", "psycopg", "redis",
)  # fmt: skip


def installed(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Return cores, memory, versions, and the current load of the machine (mean of a minute)."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "load_before": round(os.getloadavg()[0], 2),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "java": java(),
        "commit": commit(),
        "packages": {name: found for name in PACKAGES if (found := installed(name))},
    }


def java() -> str | None:
    """Return the first line of `java -version` of the Java in JAVA_HOME, or of the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else shutil.which("java")
    if not command:
        return None
    answer = subprocess.run([command, "-version"], check=False, capture_output=True, text=True).stderr
    return answer.splitlines()[0] if answer else None


def commit() -> str | None:
    """Return the measured commit, with "+" if the files differ from it; None outside a repository."""
    answers = [_git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--", "windowing")]
    if answers[0] is None:
        return None
    return answers[0] + ("+" if answers[1] else "")


def _git(*arguments: str) -> str | None:
    if not shutil.which("git"):
        return None
    done = subprocess.run(
        ["git", *arguments], check=False, capture_output=True, text=True, cwd=Path(__file__).parent.parent
    )
    return done.stdout.strip() if done.returncode == 0 else None
