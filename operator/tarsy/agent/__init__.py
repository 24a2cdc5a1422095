"""One agent at work: ask the model, run the tools, write down what came, until there is an analysis."""
