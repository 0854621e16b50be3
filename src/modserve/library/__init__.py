"""What programs that embed modserve hold: a client of whatever they name, or a server inside their application."""
