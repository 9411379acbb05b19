"""The load generator: thousands of clients on one epoll set, and the check of every delivery. No part of the broker."""
