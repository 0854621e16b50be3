"""The parts of benchmarks/peers.py: models, requests, servers, load generators and the report."""
