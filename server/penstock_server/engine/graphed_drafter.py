"""The base of drafters whose passes may be graphs: it captures and closes these."""

from penstock_server.engine.decode_graphs import DecodeGraphs
from penstock_server.engine.drafting import Drafter


class GraphedDrafter(Drafter):
    """Captures the graphs of its passes, and destroys them."""

    def __init__(self, graphs: DecodeGraphs | None) -> None:
        self.graphs = graphs

    def capture(self) -> None:
        if self.graphs is not None:
            self.graphs.capture()

    def rehearse(self) -> None:
        if self.graphs is not None:
            self.graphs.rehearse()

    def close(self) -> None:
        if self.graphs is not None:
            self.graphs.close()
