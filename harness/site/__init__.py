"""A real site: import its configuration, shrink it to a few hosts, load its database and state."""
