"""
The adapter to a Slurm: slurmrestd for reading and for jobs, scontrol of the server's own version for what its REST lacks.
"""
