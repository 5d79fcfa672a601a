"""
Kubernetes clusters that Cluster API makes in an operator's management cluster, on hosts of a Metal3.
"""
