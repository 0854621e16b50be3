"""Model repositories in buckets and archives.

`repository.py` implements `core.loading.Repository`. It asks its source, `bucket.py` or `archive.py`, for models, and
has it download files into the `cache.py`, which assembles models as plain directories. `files.py` determines the files
of a model, and refuses malicious keys. `credentials.py` has the credentials, and `failures.py` has error texts without
secrets.

Libraries for buckets are imported when a repository in one is first read.
"""
