"""Steps with feeds of changing shapes: one executable for many sizes, by padding and masks."""
