"""What each file format says of itself, read in time and memory bounded by the file. Nothing is decoded here.

Libraries follow every tag, chunk and comment of a file, some of them in time that grows with the square of it. So the
structure of JPEG and PNG, of which datasets are made, is read here and nowhere else; that of GIF and TIFF is walked
before Pillow may see it.
"""
