"""
The adapter to machines behind a Redfish controller.
"""
