"""The systems that rows come from: listing, reading and decoding. This package knows nothing about windows or commits."""
