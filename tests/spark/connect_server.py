"""A server of Spark Connect on loopback; it ends when its standard input is closed. Argument: its port."""

from __future__ import annotations

import sys

from windowing.spark import session

spark = session(
    "connect",
    cores=2,
    **{
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": sys.argv[1],
        "spark.ui.enabled": "false",
    },
)
print("ready", flush=True)
sys.stdin.read()
spark.stop()
