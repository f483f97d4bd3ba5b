"""SmolLM2-135M-Instruct: the language model that `tileops demo` runs.

`model_file` finds or fetches the weights, `gguf_file` reads them, `tokenizer` turns text into tokens,
`model` is the decoder on TileOPs operators and `reference` the same decoder in plain PyTorch.
"""
