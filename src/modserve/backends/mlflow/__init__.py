"""The ``mlflow`` backend: directories that MLflow has saved, in worker processes of the Python backend."""
