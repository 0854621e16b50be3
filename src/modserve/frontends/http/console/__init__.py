"""Live console: one page for people, and the figures that it shows while it is open."""
