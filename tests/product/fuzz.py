"""Goes on with the product test for so many seconds, from a random seed: ``python tests/product/fuzz.py 3600 [SEED]``.

What fails is printed as a program of the fewest steps, which goes into `test_counterexamples.py`.
"""

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hypothesis import seed
from hypothesis.stateful import get_state_machine_test

from product.machine import ProductMachine
from product.test_product import thorough


def main() -> None:
    seconds = float(sys.argv[1])
    generator = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else None)
    end, examples = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        test = get_state_machine_test(ProductMachine, settings=thorough(100))
        seed(generator.randrange(2**32))(test)()
        examples += 100
    print(f"product: {examples} runs of up to {thorough(1).stateful_step_count} steps, nothing is wrong")


if __name__ == "__main__":
    main()
