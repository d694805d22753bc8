"""Draw blocks as SVG. Shapes only have classes; colors and strokes are in the stylesheet."""
