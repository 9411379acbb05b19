"""The data source `mqttd` for Spark: planning, tasks, the stream reader."""
