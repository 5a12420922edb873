"""Storm's Java classes against this library: count windows over the same events, with equal results."""
