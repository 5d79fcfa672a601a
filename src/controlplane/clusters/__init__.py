"""
Clusters: an order for nodes turned into a product.
"""
