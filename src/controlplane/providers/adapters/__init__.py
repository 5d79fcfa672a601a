"""
Adapters: one folder per system below us; found by entry point, imported by nobody.
"""
