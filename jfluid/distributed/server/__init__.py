"""What a parameter server does with its program."""
