"""What works on the devices of a machine, and how fast."""
