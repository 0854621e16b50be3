"""OpenAI's API over HTTP, over the models of the server that generate text."""
