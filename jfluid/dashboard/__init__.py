"""The page of a job: its record and its logs, live or afterwards (`docs/dashboard.md`)."""
