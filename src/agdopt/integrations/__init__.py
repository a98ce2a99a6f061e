"""Callbacks for other people's trainers, a module each: transformers, lightning."""
