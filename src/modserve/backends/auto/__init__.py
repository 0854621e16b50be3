"""The ``auto`` backend: tries each engine that can load a model's file and chooses the fastest correct one.

From a file to an engine, each step a module that can be tested by itself:

- `candidates`: the format of the file → engines and precisions; which of them this machine can run
- `options`: the users' settings
- `samples`: the inputs to measure with, from ``model_warmup`` or generated
- `runner`: one execution, or several at a time, of whichever kind of instance
- `comparison`: how far the outputs of one engine are from another's
- `budget`: the time for executions
- `race`: executions in turns until it is clear which engine is fastest, or the time is over
- `choice`: the table of what was measured, and which row serves
- `cache`: the choice on disk, for the next start
- `selection`: how candidates are opened, and run without a server; `measurement`: all of these in order
- `setting` and `tuning`: the batch size and the number of instances, if these are to be chosen too
- `backend`: the backend itself
"""
