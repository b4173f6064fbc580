"""istar."""
