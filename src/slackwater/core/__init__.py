"""Types, times, hashes, offsets and text formatting that all packages share.

May import: errors.
"""

VERSION = "0.1.0"
