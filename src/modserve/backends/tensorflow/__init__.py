"""TensorFlow models: SavedModels and frozen graphs. `backend` is the entry, and imports TensorFlow if installed."""
