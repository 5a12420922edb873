"""State that is committed in steps: checkpoints, barriers, the order of hooks. Pure machines; runtime/ and spark/ drive them."""
