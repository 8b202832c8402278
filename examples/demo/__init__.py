"""The demo: real flights, kills, restores, and a picture."""
