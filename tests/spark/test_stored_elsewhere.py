"""`windowing status` and `ui` read a checkpoint through Spark's file systems, with the same output as for a local one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tests.object_stores.conftest import closed_port
from tests.spark.test_submit_acks import WORDS, counts
from windowing.cli import commands
from windowing.cli.stored import LocalFiles, checkpoint_files, metrics_in, page_of, read_checkpoint
from windowing.spark import MemorySink, SqliteQueue, submit

ROOT = Path(__file__).parents[2]


def link_of(name: str) -> str:
    """Return the Hadoop setting that maps `viewfs://<name>/checkpoint` to a folder of the local disk, without a server."""
    return f"fs.viewfs.mounttable.{name}.link./checkpoint"


def mounted(spark: SparkSession, folder: Path) -> str:
    """Mount a folder in a new Hadoop file system, and return its URI."""
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set(link_of(name := f"there-{uuid4().hex}"), f"file:{folder}")
    return f"viewfs://{name}/checkpoint"


def said(done: Result) -> str:
    return " ".join(done.output.split())


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(commands, [str(each) for each in arguments])


@pytest.fixture
def checkpoint(spark: SparkSession, tmp_path: Path) -> Path:
    """The checkpoint of a topology on a queue, with one batch whose acks are pending."""
    queue = SqliteQueue(tmp_path / "queue.db", WORDS, max_rows=2)
    queue.put([("cow", 1_000), ("moon", 9_000), ("cow", 25_000)])
    made = tmp_path / "checkpoint"
    given: dict[str, Any] = {
        "sources": {"words": queue},
        "sinks": {"count": MemorySink()},
        "checkpoint": str(made),
        "partitions": 1,
    }
    assert submit(counts(), spark, **given).await_end(200)
    return made


def table(status: str) -> list[str]:
    """The lines of `windowing status` behind the address, without what only the machine of a local checkpoint can tell."""
    return [line for line in status.splitlines()[1:] if not line.startswith(" in use ")]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.python_source
def test_a_checkpoint_on_another_file_system_is_shown_like_a_local_one_and_not_changed(
    spark: SparkSession, checkpoint: Path
) -> None:
    uri, before, local = mounted(spark, checkpoint), contents(checkpoint), LocalFiles(checkpoint)
    there = checkpoint_files(uri, {})
    shown = read_checkpoint(local)
    assert {title for title, _ in shown} >= {"topology", "bolt", "query", "last batch committed", "acks outstanding"}
    assert dict(shown)["acks outstanding"].startswith("1 roots")
    local_only = ("in use", "by no process of this machine")
    assert local_only in shown
    assert read_checkpoint(there) == [("checkpoint", uri), *(line for line in shown[1:] if line != local_only)]
    assert metrics_in(there) == metrics_in(local)
    assert metrics_in(local) is not None
    with page_of(local, 0) as ours, page_of(there, 0) as theirs:
        pages = [json.loads(urllib.request.urlopen(f"{page.url}now", timeout=10).read()) for page in (ours, theirs)]
    assert pages[0]["components"] == pages[1]["components"] != []
    assert table(run("status", "--tasks", uri).output) == table(run("status", "--tasks", checkpoint).output)
    assert run("ui", uri, "--for", "0.05").output.startswith("open http://127.0.0.1:")
    assert contents(checkpoint) == before


@pytest.mark.python_source
def test_status_uses_settings_of_spark_defaults_and_conf_but_not_the_master_of_a_cluster(
    checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "conf").mkdir()
    defaults = {
        "spark.master": "spark://127.0.0.1:1",
        "spark.submit.deployMode": "cluster",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{tmp_path}/events",
        "spark.hadoop.fs.viewfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystem",
    }
    lines = [f"{name} {value}\n" for name, value in defaults.items()]
    (tmp_path / "conf" / "spark-defaults.conf").write_text("".join(lines))
    given = f"spark.hadoop.{link_of('own')}=file:{checkpoint}"
    done = subprocess.run(
        [sys.executable, "-m", "windowing", "status", "viewfs://own/checkpoint", "--conf", given],
        cwd=ROOT,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path / "conf")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert table(done.stdout) == table(run("status", checkpoint).output)


def test_a_checkpoint_that_cannot_be_read_is_reported_with_the_remedy(spark: SparkSession, tmp_path: Path) -> None:
    uri = mounted(spark, tmp_path)
    port = closed_port()
    for given, code, sentence in (
        (f"hdfs://127.0.0.1:{port}/ck", 1, "see that its server is named rightly and answers"),
        (
            "nowhere://me:secret@there/ck",
            1,
            "Spark has no such file system: correct the path, or give the session its jar",
        ),
        (f"{uri}/none", 2, f"there is no folder {uri}/none, or it is empty"),
        (uri, 2, "it has neither windowing/ nor offsets/"),
    ):
        (tmp_path / "other").touch()
        for command in ("status", "ui"):
            done = run(command, given)
            assert (done.exit_code, sentence in said(done)) == (code, True), said(done)
            assert (code == 1) == ("HADOOP_CONF_DIR, spark-defaults.conf or --conf KEY=VALUE" in said(done))
            assert "secret" not in done.output
    done = run("ui", f"hdfs://127.0.0.1:{port}/ck", "--rows", __file__)
    assert (done.exit_code, "leave out --rows" in said(done)) == (2, True)


def test_missing_files_of_a_checkpoint_are_tolerated_and_damaged_ones_are_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = mounted(spark, tmp_path)
    there = checkpoint_files(uri, {})
    (there / "windowing").write("definition.json", b"{}")  # type: ignore[attr-defined]
    assert dict(read_checkpoint(there))["query"] == "none yet"
    assert metrics_in(there) is None
    file = tmp_path / "windowing" / "definition.json"
    file.write_bytes(b"[]")
    lines = dict(read_checkpoint(there))
    assert "its bytes do not fit its checksum" in lines["damaged"]
    assert lines["query"] == "none yet"
    file.with_name(".definition.json.crc").unlink()
    file.write_bytes(b"{")
    assert f"{uri}/windowing/definition.json is damaged" in said(run("status", uri))
