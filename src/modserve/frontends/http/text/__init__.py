"""Calls of texts over HTTP: OpenAI's embeddings, rerank of Cohere and Jina, and Hugging Face's TEI.

Imported at the first request for one of their paths.
"""
