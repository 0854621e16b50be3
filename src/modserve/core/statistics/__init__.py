"""Statistics of model versions, and metrics reported by engines."""
