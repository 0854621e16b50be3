"""The live console: one page for people, and the figures that it shows while somebody looks."""
