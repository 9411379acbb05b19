"""The data path of mqttd: everything that runs once per packet, per match or per delivery. Imports nothing of ours."""
