"""The Trident job over the flights, with its states in PostgreSQL and in Redis."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.services.conftest import address

JOB = Path(__file__).parents[2] / "examples" / "flights_trident.py"


def test_the_totals_of_one_day_equal_those_of_spark_sql(server: str, tmp_path: Path) -> None:
    job = [sys.executable, str(JOB), "--month", "1", "--days", "1", "--every", "1", "--out", str(tmp_path)]
    found = subprocess.run([*job, "--store", address(server)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "state minutes equals Spark SQL" in found.stdout
    assert address(server) not in found.stdout, "the password is masked"
