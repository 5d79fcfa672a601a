"""
Celery's side: a worker process sweeps the database by itself and is woken by messages.
"""
