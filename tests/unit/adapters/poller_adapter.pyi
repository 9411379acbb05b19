from pyx.io.poller import Poller

class Poll(Poller):
    """poll(2)."""
