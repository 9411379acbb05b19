"""Entry point of `python -m broker`, the same as the command `mqttd`."""

from broker.cli.main import main

raise SystemExit(main())
