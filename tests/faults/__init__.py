"""
Faults that people reported in systems like ours, one by one; `docs/faults.md` says which test is about which report.
"""
