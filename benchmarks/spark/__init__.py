"""Spark: this library's queries against native ones, alternately in one session. Needs the extra `spark` and Java."""
