"""Links between workers and hosts: envelope, interest, links (all pure), and the ZeroMQ sockets that transport them."""
