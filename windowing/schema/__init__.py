"""What a row is: types, fields, rows, tuples, and the hash by which a grouping sends a tuple to its task."""
