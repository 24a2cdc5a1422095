"""The platform file in force, the clients and tools that it asks for, and the masking that it sets."""
