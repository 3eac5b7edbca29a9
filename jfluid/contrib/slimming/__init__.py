"""Parts of `fluid.contrib.slim`: wrappers of programs, pruning of parameters, distillation."""
