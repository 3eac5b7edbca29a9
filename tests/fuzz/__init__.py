"""Every parser that reads what others wrote, on what nobody should have written.

Each reads it, or raises its named error, within a few times its size in memory and time in
proportion to it. By default the examples are few and always the same. JFLUID_FUZZ=N draws N new
ones for each test; what fails is printed, and is to become an `example` of its own. `make fuzz` sets
JFLUID_FUZZ_CASES, which is how many tests of machine code and of sequences draw together.
"""
