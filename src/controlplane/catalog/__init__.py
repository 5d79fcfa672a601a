"""
The catalog: sites, GPU models and instance types.
"""
