"""Compiled steps at run time: placement, feeds, fetches, executables and the caches of executables."""
