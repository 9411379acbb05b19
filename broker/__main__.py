"""`python -m broker` is `mqttd`."""

from broker.cli import main

raise SystemExit(main())
