"""
The adapter to a fabric of Linux switches with FRR: one bridge and one VXLAN device for each tenant network, announced by EVPN.
"""
