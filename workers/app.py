"""
The Celery application: `celery -A workers.app:app worker --pool threads`.

A message is a hint and carries nothing but a kind and an id. The loops start before the first connection to the broker is tried, so
a worker works without one.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import worker_init, worker_shutdown

from controlplane.kit.logging import configure
from controlplane.settings import Settings
from workers.engine import Engine

settings = Settings()
app = Celery("controlplane", broker=settings.broker_url.get_secret_value() or "memory://", include=["workers.tasks.look"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=False,
    task_serializer="json",
    accept_content=["json"],
    task_default_queue="control",
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 2, "visibility_timeout": 60},
    timezone="UTC",
)
running: list[Engine] = []


@worker_init.connect
def begin(**_: Any) -> None:
    """
    The loops of this process run.
    """
    configure(settings.log_level)
    engine = Engine(settings)
    engine.start()
    running.append(engine)


@worker_shutdown.connect
def end(**_: Any) -> None:
    """
    The loops have stopped.
    """
    while running:
        running.pop().stop()
