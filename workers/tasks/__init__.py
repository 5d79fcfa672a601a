"""
Tasks: a hint comes in, a loop is woken.
"""
