"""The whole server as one state machine, with time and engines in the hands of the test."""
