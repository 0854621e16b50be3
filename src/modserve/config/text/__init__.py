"""Parsers from text to a message, with the position of every field. They do not know the meaning of a field.

- `pbtxt`: a config.pbtxt. `text_format` makes the message; `walker` finds all mistakes and positions, with the pieces
  that `tokens` cuts the text into and the single values that `scalars` reads.
- `override`: JSON that comes with a load request.
- `problems`: what is wrong and where, and the report of it. `suggest`: what a misspelt name was probably meant to be.
"""
