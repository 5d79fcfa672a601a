"""
The edge: everything that knows FastAPI, once for all rooms.
"""
