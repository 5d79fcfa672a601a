"""
How a machine that was switched on gets its identity and reports back.
"""
