"""`python -m broker` is `mqttd`."""

from broker.cli.main import main

raise SystemExit(main())
