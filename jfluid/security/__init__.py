"""Who belongs to a job: its secret, and how processes prove to each other that they have it (docs/security.md)."""
