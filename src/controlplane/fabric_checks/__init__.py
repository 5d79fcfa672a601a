"""
The fabric checks room: tools between free nodes, judged by the ledger; whose link is bad is found by pairs.
"""
