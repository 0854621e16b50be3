"""Diagnosis of files that are not models, and of models that do not load."""
