"""Repositories of models, the versions of them to serve, and the versions served."""
