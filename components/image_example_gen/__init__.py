"""Ingests raw images into an `Examples` artifact."""
