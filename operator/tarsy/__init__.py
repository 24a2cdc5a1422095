"""TARSy, an operator that investigates alerts on Kubernetes with chains of LLM agents."""
