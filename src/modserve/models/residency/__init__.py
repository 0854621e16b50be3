"""Models that come into memory with the requests for them, and leave it for others: a budget for the models' memory.

The table of versions sees a READY servable all the time, an `OnDemandModel`. Behind it stands the loaded model, or
nothing: then requests wait, and one load serves all of them.

    absent → waits for memory → is being loaded → resident → is being evicted → absent

- `on_demand`: one model version, and the steps above. Only it changes where it is.
- `waiting`: the requests that wait for one model.
- `memory`: the budget. It decides who has to leave (`choose`), makes room, and loads one model at a time, since only
  then what the process has grown by is that model.
- `sizes`: how large things are.
- `growth`: how large the models are that come with their load, and stay.
"""
