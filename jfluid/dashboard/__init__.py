"""The page of a job: what its record and its logs hold, live or afterwards (`docs/dashboard.md`)."""
