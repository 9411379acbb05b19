"""Sockets of clients: the reactor, and the decoder that turns their bytes into packets."""
