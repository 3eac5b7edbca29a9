"""What a trainer does with its program."""
