"""
Qualification: what was measured of nodes, pairs, leaves and rails, what is good enough, and which nodes may therefore be sold.
"""
