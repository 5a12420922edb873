"""What both drivers run: stages, checkpoints, the table of options, and how stored definitions are compared."""
