"""Balance of an mqttd's workers under load: reads its /metrics, once a second."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

_RECEIVED: Final = "mqtt_messages_received_total"
_RESTARTS: Final = "mqttd_worker_restarts_total"
_PATIENCE_SECONDS: Final = 0.5


class Balance:
    """Publishes received by each worker, and restarts of workers. `url`: of the admin interface, or its /metrics."""

    def __init__(self, url: str) -> None:
        self._url = url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"
        self._before: dict[str, float] = {}
        self._restarts: dict[str, float] = {}
        self._at = 0.0

    def look(self, at: float) -> tuple[dict[str, float], list[str]]:
        """Return (publishes per second by worker since the last call, what has happened). Raises OSError when it cannot
        be reached, ValueError when it is not an mqttd.
        """
        try:
            with urllib.request.urlopen(self._url, timeout=_PATIENCE_SECONDS) as answer:
                text = answer.read().decode()
        except urllib.error.URLError as error:
            raise OSError(f"{self._url}: {error.reason}") from None
        received: dict[str, float] = {}
        restarts: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _RECEIVED:
                    worker = sample.labels["worker"]
                    received[worker] = received.get(worker, 0.0) + sample.value
                elif sample.name == _RESTARTS:
                    restarts[sample.labels["worker"]] = sample.value
        if not received:
            raise ValueError(f"{self._url} has no {_RECEIVED}: it is no mqttd's")
        seconds = at - self._at
        rates = {
            worker: (count - self._before[worker]) / seconds
            for worker, count in received.items()
            if worker in self._before and seconds > 0
        }
        happened = [
            f"worker {worker} was restarted"
            for worker, count in restarts.items()
            if worker in self._restarts and count > self._restarts[worker]
        ]
        self._before, self._restarts, self._at = received, restarts, at
        return rates, happened
