"""Draw blocks as SVG. Shapes only have classes; the stylesheet has colours and strokes."""
