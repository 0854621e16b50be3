"""Scheduling: pure rules that decide when requests run and in which batch, and a thin loop that applies them."""
