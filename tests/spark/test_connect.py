"""Spark Connect, with server and client in separate processes: the supported calls work, the others are refused by name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.spark
def test_windows_are_dataframes_on_spark_connect_and_calls_that_need_a_jvm_are_refused(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    paths = os.pathsep.join([str(HERE.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "SPARK_CONNECT_AUTHENTICATE_TOKEN": "of-this-test"}
    command = [sys.executable, str(HERE / "connect_server.py"), port]
    with (tmp_path / "server").open("w") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
        with server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n", (tmp_path / "server").read_text()
            address = f"sc://localhost:{port}/;token=of-this-test"
            client = subprocess.run(
                [sys.executable, str(HERE / "connect_client.py"), address, str(tmp_path / "home")],
                env=environment,
                capture_output=True,
                text=True,
                timeout=200,
            )
            server.stdin.close()
            server.stdout.read()
    assert client.returncode == 0, f"{client.stdout}\n{client.stderr}"
    assert server.returncode == 0, (tmp_path / "server").read_text()
