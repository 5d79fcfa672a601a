"""
The Celery application. A message is a hint and carries nothing but a kind and an id.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import setup_logging

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
"""The loops of this process, which the task wakes."""


@setup_logging.connect
def keep_our_logging(**_: Any) -> None:
    """
    Logging is as the process set it up: that somebody answers this signal keeps Celery from setting up its own, in which its messages
    would be lost to us.
    """
