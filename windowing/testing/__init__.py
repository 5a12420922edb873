"""Public helpers for tests: models, Hypothesis strategies, replay of recorded cases."""
