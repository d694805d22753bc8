"""Delta tables as sources and targets. The library deltalake writes them; this package reads their log itself."""
