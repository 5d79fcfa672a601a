"""
A dedicated Slurm cluster as files: a `SlurmPlan` and its keys become what stands on the head, the logins and the workers.

`roles.head_bundle`, `login_bundle` and `worker_bundle` give each host's files and start script, `settings.adapter_settings` what the Slurm
adapter needs to drive the cluster, `changes.renewal` what a new plan changes on a host, `upgrades.upgrade_path` in which order a release is
replaced. The same plan gives the same bytes, in whatever order its nodes are named.
"""
