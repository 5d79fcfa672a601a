"""
The calculators, for anybody with a key and at the command line: arithmetic over the catalog, nothing of any tenant.
"""
