"""Values, types, times and wording that all packages share.

May import: errors.
"""

VERSION = "0.1.0"
