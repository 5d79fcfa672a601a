"""
What goes on: operations, what needs a person, events and the audit.
"""
