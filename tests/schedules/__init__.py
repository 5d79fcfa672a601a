"""
Schedules: the whole control plane in one thread, interleaved, crashed and healed by a seed.
"""
