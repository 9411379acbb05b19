"""Settings and limits: models, defaults, and every mistake in a configuration."""
