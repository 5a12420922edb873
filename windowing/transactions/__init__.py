"""What is committed in steps: states with checkpoints, batches with attempts. Pure machines; runtime/ and spark/ drive them."""
