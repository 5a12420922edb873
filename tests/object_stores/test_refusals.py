"""HDFS or S3 refuses writes or is down, at the start or during a query: one line with the remedy; the job then continues."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psutil
import pytest
from pyarrow.fs import S3FileSystem
from pyspark.sql import SparkSession

from tests.crash import job
from tests.crash.harness import run_process
from tests.crash.job import REFUSED
from tests.object_stores.conftest import prepared, result
from tests.object_stores.jobs import HOME, addresses, folders
from windowing.errors import CheckpointError, SinkError, WindowingError
from windowing.spark import failpoints
from windowing.spark.hadoop import Folder

SAFE_MODE = "it takes no writes now: wait until its NameNode has left safe mode"
NO_ANSWER = "see that its server is named rightly and answers"
NO_RIGHT = "give the user of the session the right to make and write it, or choose another folder"


def on_hdfs() -> str:
    return f"{folders()['hdfs']}/{uuid4().hex}"


def assert_one_line_with(said: str, way_out: str) -> None:
    print(said)
    assert said.count("\n") == 0
    assert folders()["hdfs"] in said
    assert way_out in said


@contextmanager
def safe_mode(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Yield a function that makes HDFS read-only; at the end HDFS takes writes again."""
    hdfs: Any = Folder(spark, on_hdfs())
    actions = getattr(hdfs._jvm, "org.apache.hadoop.fs.SafeModeAction")
    try:
        yield lambda: hdfs._fs.setSafeMode(actions.ENTER)
    finally:
        hdfs._fs.setSafeMode(actions.LEAVE)


@contextmanager
def name_node_down(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Yield a function that kills the NameNode; at the end start it again, and wait until it takes writes."""
    pid = HOME / "namenode.pid"
    name_node = psutil.Process(int(pid.read_text()))
    command, environment = name_node.cmdline(), name_node.environ()

    def kill() -> None:
        name_node.kill()
        name_node.wait(30)

    try:
        yield kill
    finally:
        again = f'"$@" >>"{HOME}/namenode.log" 2>&1 </dev/null & echo $! >"{pid}"'
        subprocess.run(["setsid", "bash", "-c", again, "again", *command], env=environment, check=True)
        until = time.monotonic() + 60
        while True:
            try:
                Folder(spark, on_hdfs()).make()
                break
            except CheckpointError:
                assert time.monotonic() < until
                time.sleep(0.5)


def test_a_folder_of_another_user_is_refused_before_anything_is_written(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Folder(spark, there := on_hdfs()).make()
    of = prepared("windows", tmp_path, there)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    assert run_process(of) == REFUSED
    error = json.loads(Path(of.folder, "error.json").read_text())
    assert error["class"] == "CheckpointError"
    assert "user=stranger" in error["message"]
    assert_one_line_with(error["message"], NO_RIGHT)
    assert Folder(spark, there).files() == []


def test_a_read_only_store_is_refused_at_the_start_and_the_job_runs_later(
    spark: SparkSession, local: Callable[[str], tuple[Any, ...]], tmp_path: Path
) -> None:
    of = prepared("windows", tmp_path, on_hdfs())
    with safe_mode(spark) as enter:
        enter()
        with pytest.raises(CheckpointError) as found:
            job.start(spark, of)
    assert_one_line_with(str(found.value), SAFE_MODE)
    assert job.start(spark, of).await_end(240), "the query does not end"
    assert result(spark, "windows", of) == local("windows")[0]


@pytest.mark.parametrize("point", ["before_batch:2", "before_commit:2"])
@pytest.mark.parametrize(("gone", "way_out"), [(safe_mode, SAFE_MODE), (name_node_down, NO_ANSWER)])
def test_a_store_that_fails_during_a_query_ends_it_and_a_restart_has_the_results_of_a_local_run(
    spark: SparkSession,
    local: Callable[[str], tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    gone: Any,
    way_out: str,
    point: str,
) -> None:
    of = prepared("windows", tmp_path, on_hdfs())
    with gone(spark) as go:
        monkeypatch.setattr(failpoints, "_kill", lambda name: go())
        monkeypatch.setenv("WINDOWING_FAILPOINT", point)
        monkeypatch.setenv("WINDOWING_FAILPOINT_ONCE", str(tmp_path / "once"))
        with pytest.raises(WindowingError) as found:
            job.start(spark, of).await_end(240)
    assert isinstance(found.value, CheckpointError)
    assert_one_line_with(str(found.value), way_out)
    assert job.start(spark, of).await_end(240), "the query does not end"
    assert result(spark, "windows", of) == local("windows")[0]


DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"  # as S3 says it


class Front(ThreadingHTTPServer):
    """A server in front of that of S3, with a bucket: it may take no writes, or keep no empty folders; all else goes through."""

    daemon_threads = True

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(("127.0.0.1", 0), Through)
        self.behind = urlsplit(addresses()["WINDOWING_S3_URL"])
        self.read_only = self.drops_folders = False
        bucket = uuid4().hex  # Hadoop keeps the address of a bucket that it has seen
        S3FileSystem(
            access_key=self.behind.username,
            secret_key=self.behind.password,
            endpoint_override=f"{self.behind.hostname}:{self.behind.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        ).create_dir(bucket)
        conf: Any = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
        conf.set(f"fs.s3a.bucket.{bucket}.endpoint", f"http://127.0.0.1:{self.server_port}")
        self.there = f"s3a://{bucket}/job"


class Through(BaseHTTPRequestHandler):
    """One connection to a Front."""

    protocol_version = "HTTP/1.1"
    server: Front

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.read_only and self.command not in ("GET", "HEAD"):
            self._answer(403, [("Content-Type", "application/xml")], DENIED)
        elif self.server.drops_folders and self.command == "PUT" and self.path.endswith("/"):
            self._answer(200, [("ETag", '"dropped"')], b"")
        else:
            behind = HTTPConnection(self.server.behind.hostname or "", self.server.behind.port)
            behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                behind.putheader(name, value)
            behind.endheaders(body)
            answer = behind.getresponse()
            self._answer(answer.status, answer.getheaders(), answer.read())
            behind.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length") or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def front(spark: SparkSession) -> Iterator[Front]:
    with Front(spark) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.1,))
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("point", ["before_batch:2", "before_commit:2"])
def test_a_bucket_that_becomes_read_only_ends_the_query_and_refuses_the_next_one_and_nothing_is_lost(
    spark: SparkSession,
    local: Callable[[str], tuple[Any, ...]],
    front: Front,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    point: str,
) -> None:
    of = prepared("windows", tmp_path, front.there)
    monkeypatch.setattr(failpoints, "_kill", lambda name: setattr(front, "read_only", True))
    monkeypatch.setenv("WINDOWING_FAILPOINT", point)
    monkeypatch.setenv("WINDOWING_FAILPOINT_ONCE", str(tmp_path / "once"))
    # The next start writes the schema of the output first.
    for kind, whose in ((CheckpointError, "checkpoint"), (SinkError, "out")):
        with pytest.raises(WindowingError) as found:
            job.start(spark, of).await_end(240)
        print(found.value)
        assert type(found.value) is kind
        assert str(found.value).count("\n") == 0
        assert f"{of.there}/{whose}" in str(found.value)
        assert NO_RIGHT in str(found.value)
    front.read_only = False
    assert job.start(spark, of).await_end(240), "the query does not end"
    assert result(spark, "windows", of) == local("windows")[0]


def test_a_store_that_keeps_no_empty_folders_is_refused_at_the_start(
    spark: SparkSession, front: Front, tmp_path: Path
) -> None:
    front.drops_folders = True
    of = prepared("windows", tmp_path, front.there)
    with pytest.raises(
        CheckpointError, match=r"s3a://.*/job/checkpoint/windowing/control is missing .* use another server$"
    ):
        job.start(spark, of)
