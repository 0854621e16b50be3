"""TensorFlow models: SavedModels and frozen graphs. `backend` is the way in, and imports TensorFlow if it is there."""
