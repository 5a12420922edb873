"""The codec of the state in Spark's store: the library's own (windowing/core/codec.py)."""

from __future__ import annotations

from windowing.core.codec import CHUNK_MAGIC, META_MAGIC, NAN, dumps, frame, loads, unframe

__all__ = ["CHUNK_MAGIC", "META_MAGIC", "NAN", "dumps", "frame", "loads", "unframe"]
