"""`windowing`, or `python -m windowing`: see windowing/cli/__init__.py."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say which packages it needs."""
    try:
        from windowing.cli import commands
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "rich"):
            raise
        sys.exit(f"the command line needs the package {missing.name}: install windowing with its extra, windowing[cli]")
    commands()


if __name__ == "__main__":
    main()
