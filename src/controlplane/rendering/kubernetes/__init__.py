"""
A dedicated Kubernetes cluster as files: a `KubernetesPlan` and its keys become what stands on control planes and workers.

`roles.control_plane_bundle` and `worker_bundle` give each host's files and start script, `cloudinit.user_data` the same for machines that
nobody speaks to after they booted, `settings.adapter_config` how its API is reached. The same plan and keys give the same bytes, in
whatever order its hosts are named.
"""
