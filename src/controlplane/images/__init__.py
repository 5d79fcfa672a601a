"""
Images: operating systems as resources, uploaded in chunks, checked, and served to machines.
"""
