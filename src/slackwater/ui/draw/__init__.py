"""Blocks as SVG. Colours and strokes are the stylesheet's: shapes only have classes."""
