"""Statistics of each model version, and those that engines report themselves."""
