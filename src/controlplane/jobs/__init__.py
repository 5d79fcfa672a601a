"""
The jobs room: work with an end, run as a gang on a tenant's cluster.
"""
