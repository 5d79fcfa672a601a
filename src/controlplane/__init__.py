"""
The control plane for GPU clouds: tenants, money, inventory and the truth about who holds what.
"""

__version__ = "0.1.0"
