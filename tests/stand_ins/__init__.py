"""
Programs that stand where kubeadm, a kubelet, containerd and k3s would, on hosts that really boot: they look at what they are given as the
real ones would, and then do at the API what those do. Standard library and PyYAML alone, as on the hosts. Nothing of them is a container
runtime, an etcd or a network.
"""
