"""
Speaking to API servers of Kubernetes, for every adapter that does.
"""
