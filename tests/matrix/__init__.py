"""
The fault matrix of metal: every fault, in every operation of a machine's life, on every adapter, over seeds.
"""
