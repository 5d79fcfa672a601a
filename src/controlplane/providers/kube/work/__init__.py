"""
Jobs and services in any Kubernetes: written as its objects, followed, and read back, for every adapter that has them there.
"""
