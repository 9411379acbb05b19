"""The processes of mqttd: who runs where, how they are watched, how a connection changes hands. Imports only `pyx`."""
