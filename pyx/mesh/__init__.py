"""The sockets of the mesh: ZeroMQ's protocol on the reactor's own unix sockets."""
