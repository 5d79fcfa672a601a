"""
The adapter to an OpenStack Ironic, stand-alone or behind Keystone: its nodes as machines, with our marks kept on the nodes themselves.
"""
