"""The engines that are measured, ours among them, and how they are measured."""
