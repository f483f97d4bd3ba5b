"""Costs of operators: roofline formulas that are not written inline in the manifest."""
