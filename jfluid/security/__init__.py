"""Authentication of a job's processes: its secret, and how they prove to each other that they have
it (docs/security.md).
"""
