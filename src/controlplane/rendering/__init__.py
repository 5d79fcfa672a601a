"""
What the products run on, rendered from a plan: pure functions from facts to files. No clock, database, network or provider.
"""
