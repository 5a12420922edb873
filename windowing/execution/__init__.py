"""Code shared by both drivers: execution plans, metrics, the table of options, and the comparison of stored definitions."""
