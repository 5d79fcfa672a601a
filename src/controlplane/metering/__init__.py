"""
Metering: what was held for how long, and what it costs.
"""
