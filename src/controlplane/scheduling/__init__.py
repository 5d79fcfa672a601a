"""
Pure decisions over snapshots: no clock, database or network.
"""
