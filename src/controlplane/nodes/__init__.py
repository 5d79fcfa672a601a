"""
Nodes: the inventory, who holds what, and the systems that own the machines.
"""
