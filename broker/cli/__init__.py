"""The command `mqttd` and its subcommands."""
