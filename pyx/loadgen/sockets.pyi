from typing_extensions import disjoint_base

from pyx.loadgen.ledger import Ledger

@disjoint_base
class Sockets(Ledger):
    said: list[str]
    remaining: int
