"""Speed, growth and memory of this library against loops by hand and against its peers: see README.md for the method."""
