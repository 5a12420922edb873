"""Storm's own Java classes beside this library: count windows, the same events, equal windows."""
