"""Tables of a server's program, and how their rows are updated."""
