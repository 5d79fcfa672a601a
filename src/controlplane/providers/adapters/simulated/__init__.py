"""
A provider that exists only in a file: machines, clusters and jobs with a ledger of their own, a virtual clock and faults on order.
"""
