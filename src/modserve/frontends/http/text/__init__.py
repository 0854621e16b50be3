"""Calls of texts over HTTP: OpenAI's embeddings, the rerank calls of Cohere and Jina, and those of Hugging Face's TEI.

Imported at the first request for one of their paths.
"""
