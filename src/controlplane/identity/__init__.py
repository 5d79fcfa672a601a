"""
The tree of resellers, tenants and projects, who acts in it, and with which keys.
"""
