"""Text to token ids and back, from the vocabulary and merges in the GGUF file.

SmolLM2 has byte-level BPE over GPT-2's word pattern, with every digit a word of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BPETokenizer

from .weights import Checkpoint

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""The system message that the model's own chat template sets where a conversation has none."""

_CONTROL = 3
"""The type that GGUF gives to tokens which stand for no text."""


class Tokenizer:
    """The tokenizer of one checkpoint. Not for several threads at once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        names: list[str] = checkpoint.meta("tokenizer.ggml.tokens")
        kinds: list[int] = checkpoint.meta("tokenizer.ggml.token_type")
        kind = checkpoint.meta("tokenizer.ggml.pre")
        if kind != "smollm":
            raise ValueError(f"tokenizer.ggml.pre: {kind!r} is not 'smollm'")
        left_right = (merge.split(" ") for merge in checkpoint.meta("tokenizer.ggml.merges"))
        merges = [(left, right) for left, right in left_right]
        self._bpe = BPETokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        self._bpe.decoder = decoders.ByteLevel()
        special = [name for name, kind in zip(names, kinds, strict=True) if kind == _CONTROL]
        self._bpe.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
        self.start: int = self._id("<|im_start|>")
        self.end: int = self._id("<|im_end|>")

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids. With ``special`` a spelled-out control token becomes that token, else plain text."""
        self._bpe.encode_special_tokens = not special
        ids: list[int] = self._bpe.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text, control tokens spelled out; incomplete UTF-8 becomes U+FFFD."""
        return self._bpe.decode(list(ids), skip_special_tokens=False)

    def chat(self, user: str, system: str = SYSTEM) -> list[int]:
        """A conversation of one user message, up to where the assistant's answer begins.

        A control token spelled out in either message stays text: no message can end itself.
        """
        ids: list[int] = []
        for role, message in (("system", system), ("user", user)):
            body = self.encode(f"{role}\n{message}", special=False)
            ids += [self.start, *body, self.end, *self.encode("\n")]
        return [*ids, self.start, *self.encode("assistant\n")]

    def _id(self, name: str) -> int:
        got: int | None = self._bpe.token_to_id(name)
        if got is None:
            raise ValueError(f"tokenizer.ggml.tokens: no {name}")
        return got
