"""Authentication of a job's processes: the secret, and mutual proofs of the secret (docs/security.md)."""
