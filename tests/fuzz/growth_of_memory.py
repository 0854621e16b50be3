"""How many bytes each target has kept after hundreds of inputs of all kinds: ``python tests/fuzz/growth_of_memory.py``.

A process of its own, since all that the interpreter allocates is counted, whichever thread did it. Prints JSON.
"""

import gc
import json
import tracemalloc

import mutations
import targets

_MUTATED = 150


def growth(name: str) -> int:
    """What two more rounds of the same inputs leave behind, in bytes."""
    kept = list(targets.corpus(name).values())
    inputs = kept + [mutations.mutated(name, kept[seed % len(kept)], seed) for seed in range(_MUTATED)]

    def once() -> None:
        for data in inputs:
            targets.run(name, data)
        gc.collect()

    once()
    tracemalloc.start()
    try:
        once()
        before, _ = tracemalloc.get_traced_memory()
        once()
        once()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before


if __name__ == "__main__":
    print(json.dumps({name: growth(name) for name in targets.NAMES}))
