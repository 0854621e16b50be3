"""The ``sklearn`` backend: estimators and pipelines of scikit-learn."""
