"""Hosts, networks and schedulers on one machine, for tests of jobs that run on several."""
