"""Fleet: one API over the roles that the processes of a job have.

Fluid's paths (`fluid.incubate.fleet...`) lead here.
"""
