"""Values, types, times and wording shared by all packages. This package imports no other one."""
