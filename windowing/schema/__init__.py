"""Rows: types, fields, rows, tuples, and the hash by which a grouping chooses the task of a tuple."""
