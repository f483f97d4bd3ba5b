"""Python generated from manifest signatures: construction and call checks, and what they return."""
