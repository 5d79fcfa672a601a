"""
The adapter to a Kubernetes that others run: a namespace and a pool of nodes for each cluster of ours, and jobs inside them.
"""
