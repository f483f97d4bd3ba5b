"""Operators of mixtures of experts."""
