"""The processes of mqttd: supervisor, placement of clients, hand-off of connections. Imports only `pyx`."""
