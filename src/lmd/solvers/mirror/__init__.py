"""Mirror descent and its variants."""
