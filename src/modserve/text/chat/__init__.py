"""Generation of text as OpenAI's API has it, over models that take text and give text."""
