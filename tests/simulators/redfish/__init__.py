"""
Controllers that play faults over real HTTP.
"""
