"""The sampler ``vllm``: a server or an engine that follows the learner's weights, token in, token out."""
