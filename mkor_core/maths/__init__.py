"""The tensor maths of the methods: factors, products, rank-1 updates. Nothing here knows of layers or ranks."""
