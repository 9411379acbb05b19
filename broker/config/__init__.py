"""Settings and limits: models, defaults, and the checks that find every mistake in a configuration."""
