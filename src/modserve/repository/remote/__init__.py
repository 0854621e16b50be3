"""Model repositories in buckets and archives.

`repository.py` implements `core.loading.Repository`. It asks a source what there is, `bucket.py` or `archive.py`, and
has it bring files into the `cache.py`, from which models are put together as plain directories. `files.py` says which
files make up a model, and refuses keys that are tricks; `credentials.py` says with whose rights, and `failures.py` what
went wrong, in words that name no secret.

The libraries for buckets are imported when a repository in one is read for the first time, and not before.
"""
