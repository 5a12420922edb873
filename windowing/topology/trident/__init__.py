"""Trident: streams of batches as a plan, and the machines of its groups; both drivers run the same ones."""
