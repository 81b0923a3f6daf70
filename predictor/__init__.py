"""phi and everything that turns it into a classifier."""
