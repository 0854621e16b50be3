"""The ``mlflow`` backend: directories saved by MLflow, in worker processes of the Python backend."""
