"""
The services room: work without an end on a cluster, kept up in replicas, in numbered versions.
"""
