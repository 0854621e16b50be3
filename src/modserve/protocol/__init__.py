"""The wire and the core's values, translated both ways: pure functions on bytes and messages."""
