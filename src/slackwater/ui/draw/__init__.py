"""Draw blocks as SVG. Shapes only have classes; colours and strokes are in the stylesheet."""
