"""Stand-ins for a PBS Pro server's commands and a site's mpiexec, to run the cluster profile without either."""
