"""Trident topologies on Spark: one query, whose batch `n` is txid `n` + 1; `submit_trident` starts it.

sources --units right behind them, packing--> windows in Spark's state store      the stream: what has to be evaluated once
                                                   |
foreachBatch: attempt claimed --> units that may fail --> units that commit, through the fence of their states --> sinks
              ^----------------- FailedException: the next attempt
"""

from windowing.spark.trident.submit import submit_trident

__all__ = ["submit_trident"]
