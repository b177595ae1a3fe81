"""`make image-check`: builds the images of deploy/Dockerfile without an image registry, and tries them."""
