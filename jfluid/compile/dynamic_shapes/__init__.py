"""Steps whose feeds change shape: one executable for many sizes, by padding and masks."""
