"""Bad input in bulk: every public edge is fed generated inputs, under atheris or by a driver of our own."""
