"""A tokenizer made of a list of strings, the longest of which wins."""


class ToyCodec:
    """`<name>` is a special token; `roles` and `start_ids` as given."""

    def __init__(self, tokens, roles=None, start_ids=()):
        self.pieces = [token if token.startswith("<") else token.encode() for token in tokens]
        self.roles, self.start_ids = roles or {}, list(start_ids)

    def encode(self, text):
        ids = []
        while text:
            fitting = [i for i, piece in enumerate(self.pieces) if isinstance(piece, bytes) and text.startswith(piece)]
            if not fitting:
                text = text[1:]
                continue
            ids.append(max(fitting, key=lambda i: len(self.pieces[i])))
            text = text[len(self.pieces[ids[-1]]) :]
        return ids
