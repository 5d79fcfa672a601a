"""
What reports of trouble mean. Pure: no I/O, no clock.
"""
