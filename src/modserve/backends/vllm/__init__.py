"""The ``vllm`` backend: language models on vLLM, from the folders of Triton's backend, in a worker process."""
