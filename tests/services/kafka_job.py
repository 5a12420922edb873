"""Writes a batch to a topic, and kills itself after the given call: `python -m tests.services.kafka_job TOPIC BATCH PLACE`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests.services.kafka import ROWS, opened
from windowing.queues import kafka_topics

PLACES = (
    "init_transactions",
    "begin_transaction",
    "produce",
    "send_offsets_to_transaction",
    "commit_transaction",
    "none",
)


class Dying(kafka_topics.Producer):  # type: ignore[misc, name-defined, unused-ignore]
    """Kills the process after a call; for `produce` after the second one, when the message has reached the broker."""

    place = "none"
    produced = 0

    def _hit(self, place: str) -> None:
        if place == self.place:
            os.kill(os.getpid(), signal.SIGKILL)

    def init_transactions(self, *arguments: Any) -> None:
        super().init_transactions(*arguments)
        self._hit("init_transactions")

    def begin_transaction(self) -> None:
        super().begin_transaction()
        self._hit("begin_transaction")

    def produce(self, *arguments: Any, **named: Any) -> None:
        super().produce(*arguments, **named)
        self.produced += 1
        if self.produced == 2 and self.place == "produce":
            super().flush(10)
            self._hit("produce")

    def send_offsets_to_transaction(self, *arguments: Any) -> None:
        super().send_offsets_to_transaction(*arguments)
        self._hit("send_offsets_to_transaction")

    def commit_transaction(self, *arguments: Any) -> None:
        super().commit_transaction(*arguments)
        self._hit("commit_transaction")


if __name__ == "__main__":
    topic, batch, Dying.place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    kafka_topics.Producer = Dying
    opened(topic).write("q", "default", batch, lambda: iter(ROWS[batch]))
