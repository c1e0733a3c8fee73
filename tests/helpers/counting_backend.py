"""A backend of torch.compile that counts compilations."""


class CountingBackend:
    """A backend that Dynamo calls once per graph that it traces; runs it as it is, as "eager" does."""

    def __init__(self):
        self.num_graphs = 0

    def __call__(self, graph, inputs):
        self.num_graphs += 1
        return graph.forward
