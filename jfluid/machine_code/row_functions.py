"""Names of the kernels in `row_kernels.py`, importable without LLVM."""

TAKE, PUT, ADD, MERGE = (f"jfluid_row_{name}" for name in ("take", "put", "add", "merge"))
VALUES = {ADD: 2, MERGE: 1}  # which argument has values that may be strips of a matrix
