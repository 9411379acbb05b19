"""The broker: its decisions and wiring, on top of the mechanism in `pyx`. `broker.cli.main` is the command `mqttd`."""

__version__ = "0.1.0"
