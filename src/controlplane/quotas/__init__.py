"""
Quotas: what a scope may hold, and what it holds.
"""
