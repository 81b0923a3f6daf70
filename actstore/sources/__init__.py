"""Where rows come from: array files, generated rows, images."""
