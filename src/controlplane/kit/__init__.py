"""
The kit is the machinery every room stands on; it knows no resource of the domain.
"""
