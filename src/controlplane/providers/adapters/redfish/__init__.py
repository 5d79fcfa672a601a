"""
The adapter to machines behind a Redfish controller (BMC): one client a controller, every vendor's ways kept inside.
"""
