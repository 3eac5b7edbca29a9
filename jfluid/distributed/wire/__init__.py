"""Connections between trainers and servers."""
