"""
Ports to the systems below: a small protocol per kind of provider, plain values in and out, typed errors only.
"""
