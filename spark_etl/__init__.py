"""PySpark over snapshots of mqttd's stores: the data source `mqttd`, and its tables (docs/analytics.md).

Needs `pip install 'mqttd[analytics]'` and Java 17, and none of the compiled code of the broker.
"""
