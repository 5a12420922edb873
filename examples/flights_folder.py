"""The demo's own folder: it removes what it made itself, and never touches a folder that is not its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

MARKER = ".windowing-demo"
_TEXT = (
    "This folder belongs to examples/flights*.py of the library `windowing`; the next run removes what it made here.\n"
)
_PARTS = ("input", "checkpoints", "logs", "output", "states", "undisturbed", "killed")
_FILES = ("flights.png", "spark.log")


class FolderError(Exception):
    """The folder is not the demo's own."""


class Folder:
    """Where things lie: input/, checkpoints/ (and what is kept of them in logs/), output/, states/, the picture, Spark's log."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.input = self.path / "input"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"
        self.output = self.path / "output"
        self.states = self.path / "states"
        self.picture = self.path / "flights.png"
        self.log = self.path / "spark.log"
        self._held: int | None = None

    def begin(self) -> None:
        """Make the folder, or empty it of what an earlier run of the demo has left. Raises FolderError for a foreign one."""
        self._require_own()
        self.path.mkdir(parents=True, exist_ok=True)
        self._hold()
        self._remove(*_PARTS)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)

    def go_on(self) -> None:
        """Take up a run that was killed. Raises FolderError when there is none."""
        self._require_own()
        if not self.input.is_dir() or not self.checkpoints.is_dir():
            raise FolderError(f"{self.path} holds no run to go on with; start one without --resume")
        self._hold()

    def keep_logs(self) -> None:
        """Copy the offset log of each query, which says what each batch read: Spark keeps those of 100 batches only."""
        for log in self.checkpoints.glob("*/offsets/[0-9]*"):
            copy = self.logs / log.parent.parent.name / log.name
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                half = copy.with_name(f".{log.name}")  # a run may be killed in the middle of this
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(log, half)
                    half.replace(copy)

    def tidy(self) -> None:
        """Remove what only the run itself needed: its input files, checkpoints and logs."""
        self._remove("input", "checkpoints", "logs")

    def close(self) -> None:
        """Let other runs in."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _require_own(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FolderError(f"{self.path} is a file; name a folder with --out")
        foreign = self.path.is_dir() and not (self.path / MARKER).is_file() and any(self.path.iterdir())
        if foreign:
            raise FolderError(
                f"{self.path} was not made by this demo and is not empty, so nothing in it was touched; name another folder "
                "with --out"
            )

    def _hold(self) -> None:
        """Keep other runs out as long as this process lives."""
        marker = os.open(self.path / MARKER, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(marker)
            raise FolderError(
                f"another run is at work in {self.path}; wait for it, or name another with --out"
            ) from None
        os.pwrite(marker, _TEXT.encode(), 0)
        self._held = marker

    def _remove(self, *names: str) -> None:
        for name in names:
            part = self.path / name
            if part.is_symlink():
                part.unlink()
            elif part.is_dir():
                shutil.rmtree(part)
