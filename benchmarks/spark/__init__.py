"""Spark: this library's queries against native ones, side by side in one session. Needs the extra `spark` and a Java."""
